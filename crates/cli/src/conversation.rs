//! What was said, as the tokens that a model continues.

use calypte_engine::Outcome;
use calypte_engine::text::{ChatTemplate, Message, Tokenizer};

use crate::exit::Failure;
use crate::prompt::{encode, encode_start};

/// A conversation so far.
pub enum Conversation {
    /// With a model that has a chat template.
    Chat {
        /// Turns messages into a prompt.
        template: Box<ChatTemplate>,
        /// What the model is told first.
        system: Option<String>,
        /// Messages and answers in turn.
        messages: Vec<Message>,
    },
    /// With a model that only goes on with a text.
    Text {
        /// All of the text.
        tokens: Vec<u32>,
    },
}

impl Conversation {
    /// Nothing was said yet.
    pub fn new(template: Option<ChatTemplate>, system: Option<String>) -> Conversation {
        match template {
            Some(template) => {
                Conversation::Chat { template: Box::new(template), system, messages: Vec::new() }
            }
            None => Conversation::Text { tokens: Vec::new() },
        }
    }

    /// Forgets what was said, but not what the model was told before.
    pub fn reset(&mut self) {
        match self {
            Conversation::Chat { messages, .. } => messages.clear(),
            Conversation::Text { tokens } => tokens.clear(),
        }
    }

    /// The tokens that an answer to `said` continues, from the very start.
    pub fn timeline(&self, tokenizer: &Tokenizer, said: &str) -> Result<Vec<u32>, Failure> {
        match self {
            Conversation::Chat { template, system, messages } => {
                let system = system.iter().map(|text| Message::new("system", text));
                let mut all: Vec<Message> = system.chain(messages.iter().cloned()).collect();
                all.push(Message::new("user", said));
                let prompt = template.render(&all, None, true, &serde_json::Map::new());
                // The template writes the beginning-of-sequence token itself if it wants one.
                let prompt = prompt.map_err(|e| Failure::Usage(format!("the model's chat template: {e}")))?;
                encode(tokenizer, &prompt)
            }
            Conversation::Text { tokens } if tokens.is_empty() => encode_start(tokenizer, said),
            Conversation::Text { tokens } => {
                let mut all = tokens.clone();
                all.extend(encode(tokenizer, said)?);
                Ok(all)
            }
        }
    }

    /// Takes up an answer. `timeline` is what [`Conversation::timeline`] gave for `said`; `is_end` tells end tokens.
    pub fn answered(
        &mut self,
        said: &str,
        timeline: Vec<u32>,
        outcome: &Outcome,
        is_end: impl Fn(u32) -> bool,
    ) {
        match self {
            Conversation::Chat { messages, .. } => {
                messages.push(Message::new("user", said));
                messages.push(Message::new("assistant", outcome.text.as_str()));
            }
            Conversation::Text { tokens } => {
                *tokens = timeline;
                tokens.extend(outcome.ids.iter().copied().filter(|id| !is_end(*id)));
            }
        }
    }
}

/// How many tokens two timelines share from the start.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let cases: [(&[u32], &[u32], usize); 4] =
            [(&[], &[1], 0), (&[1, 2, 3], &[1, 2, 4], 2), (&[1, 2], &[1, 2, 3], 2), (&[2], &[1], 0)];
        for (a, b, want) in cases {
            assert_eq!(common_prefix(a, b), want);
        }
    }
}
