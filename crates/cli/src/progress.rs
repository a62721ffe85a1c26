//! Progress of long work, on a terminal only.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use calypte_engine::Opening;
use indicatif::{ProgressBar, ProgressStyle};

/// How often a spinner turns.
const SPIN: Duration = Duration::from_millis(100);
/// Work that is done sooner shows no bar: it would only flicker.
const PATIENCE: Duration = Duration::from_millis(300);

/// At most one bar on stderr, and none when stderr is no terminal.
pub struct Progress {
    terminal: bool,
    current: Option<Shown>,
}

struct Shown {
    label: &'static str,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Shows nothing yet.
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), current: None }
    }

    /// `done` of `total` tokens of a prompt or a text are computed.
    pub fn tokens(&mut self, done: usize, total: usize) {
        let template = "{msg} {wide_bar:.dim} {pos}/{len} tokens, {eta} left";
        self.show("Reading the text", template, done as u64, total as u64);
    }

    /// Something of unknown length goes on.
    pub fn busy(&mut self, label: &'static str) {
        self.clear();
        if self.terminal {
            let bar = ProgressBar::new_spinner().with_message(label);
            bar.enable_steady_tick(SPIN);
            self.current = Some(Shown { label, since: Instant::now(), bar: Some(bar) });
        }
    }

    /// Leaves no trace on the terminal.
    pub fn clear(&mut self) {
        if let Some(bar) = self.current.take().and_then(|shown| shown.bar) {
            bar.finish_and_clear();
        }
    }

    fn show(&mut self, label: &'static str, template: &str, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        if self.current.as_ref().is_none_or(|shown| shown.label != label) {
            self.clear();
            self.current = Some(Shown { label, since: Instant::now(), bar: None });
        }
        if let Some(shown) = &mut self.current
            && (shown.bar.is_some() || shown.since.elapsed() >= PATIENCE)
        {
            let bar = shown.bar.get_or_insert_with(|| bar(label, template, total));
            bar.set_position(done);
        }
        if done >= total {
            self.clear();
        }
    }
}

fn bar(label: &'static str, template: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(total)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(label)
}

impl Opening for Progress {
    fn weights(&mut self, done: u64, total: u64) {
        let template = "{msg} {wide_bar:.dim} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}";
        self.show("Loading weights", template, done, total);
    }
}
