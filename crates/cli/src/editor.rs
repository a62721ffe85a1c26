//! Where the lines of a conversation come from: a line editor on a terminal, plain lines otherwise.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::exit::Failure;
use crate::places;

/// What the editor shows before a line, and before one that continues it.
const PROMPT: &str = "> ";
const PROMPT_CONTINUED: &str = "… ";

/// What a person said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A message, of several lines if they ended in a backslash.
    Message(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Ctrl-D, or the end of the input.
    End,
}

/// A source of lines.
enum Lines {
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe(Box<dyn BufRead>),
}

/// Reads what a person says.
pub struct Editor(Lines);

impl Editor {
    /// The line editor with the history of earlier conversations, or plain lines when stdin is no terminal.
    pub fn open() -> Editor {
        if !io::stdin().is_terminal() {
            return Editor(Lines::Pipe(Box::new(io::stdin().lock())));
        }
        match DefaultEditor::new() {
            Ok(mut editor) => {
                let history = history_file();
                if let Some(file) = &history {
                    // There is none before the first conversation.
                    let _ = editor.load_history(file);
                }
                Editor(Lines::Terminal { editor: Box::new(editor), history })
            }
            Err(error) => {
                tracing::warn!(%error, "no line editor on this terminal");
                Editor(Lines::Pipe(Box::new(io::stdin().lock())))
            }
        }
    }

    /// Whether a person sits at a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self.0, Lines::Terminal { .. })
    }

    /// The next message.
    pub fn read(&mut self) -> Result<Said, Failure> {
        let mut message = String::new();
        let mut prompt = PROMPT;
        loop {
            let line = match self.line(prompt)? {
                Said::Message(line) => line,
                // A message that the input's end cuts off in the middle is still a message.
                Said::End if !message.is_empty() => break,
                other => return Ok(other),
            };
            match line.strip_suffix('\\') {
                Some(start) => {
                    message.push_str(start);
                    message.push('\n');
                    prompt = PROMPT_CONTINUED;
                }
                None => {
                    message.push_str(&line);
                    break;
                }
            }
        }
        self.remember(&message);
        Ok(Said::Message(message))
    }

    fn line(&mut self, prompt: &str) -> Result<Said, Failure> {
        match &mut self.0 {
            Lines::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Said::Message(line)),
                Err(ReadlineError::Interrupted) => Ok(Said::Interrupted),
                Err(ReadlineError::Eof) => Ok(Said::End),
                Err(error) => Err(Failure::Usage(format!("the terminal cannot be read: {error}"))),
            },
            Lines::Pipe(stdin) => {
                let mut line = String::new();
                let read = stdin.read_line(&mut line);
                match read.map_err(|e| Failure::Usage(format!("stdin: cannot be read: {e}")))? {
                    0 => Ok(Said::End),
                    _ => {
                        let line = line.strip_suffix('\n').unwrap_or(&line);
                        Ok(Said::Message(line.strip_suffix('\r').unwrap_or(line).to_string()))
                    }
                }
            }
        }
    }

    /// Puts a message into the history. Without one the editor works all the same, so failures are not told.
    fn remember(&mut self, message: &str) {
        if let Lines::Terminal { editor, history } = &mut self.0
            && !message.trim().is_empty()
        {
            let _ = editor.add_history_entry(message);
            if let Some(file) = history {
                let _ = editor.append_history(file);
            }
        }
    }
}

/// `history` in the person's state directory.
fn history_file() -> Option<PathBuf> {
    let directory = places::state()?;
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &'static str, want: &[&str]) {
        let mut editor = Editor(Lines::Pipe(Box::new(input.as_bytes())));
        for message in want {
            assert_eq!(editor.read().expect("readable"), Said::Message(message.to_string()));
        }
        assert_eq!(editor.read().expect("readable"), Said::End);
    }

    #[test]
    fn lines_become_messages() {
        check("", &[]);
        check("one\ntwo\r\nthree", &["one", "two", "three"]);
        check("a\\\nb\\\nc\nd", &["a\nb\nc", "d"]);
        check("cut off\\", &["cut off\n"]);
        check("\n", &[""]);
    }
}
