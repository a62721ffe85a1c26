//! What every token id stands for.

use std::collections::HashMap;

use crate::error::TextError;

/// Largest vocabulary accepted; the largest published ones have about 260 thousand entries.
pub(crate) const VOCAB_SIZE_MAX: usize = 1 << 22;

/// One id of a vocabulary that is being put together.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// As written in the vocabulary.
    pub(crate) content: String,
    /// What it decodes to.
    pub(crate) bytes: Vec<u8>,
    /// A control token: never shown to a user.
    pub(crate) special: bool,
}

/// The bytes of every token id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    bytes: Vec<Option<Box<[u8]>>>,
    special: Vec<bool>,
    ids: HashMap<String, u32>,
}

impl Vocabulary {
    /// From entries by id; `None` for an id without a token. Of two ids with the same content the first is found by name.
    pub(crate) fn new(entries: Vec<Option<Entry>>) -> Self {
        let mut v = Self {
            bytes: Vec::with_capacity(entries.len()),
            special: Vec::with_capacity(entries.len()),
            ids: HashMap::new(),
        };
        for (id, entry) in (0u32..).zip(entries) {
            v.special.push(entry.as_ref().is_some_and(|e| e.special));
            v.bytes.push(entry.as_ref().map(|e| e.bytes.clone().into_boxed_slice()));
            if let Some(entry) = entry {
                v.ids.entry(entry.content).or_insert(id);
            }
        }
        v
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn id_of(&self, content: &str) -> Option<u32> {
        self.ids.get(content).copied()
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(crate) fn mark_special(&mut self, id: u32) {
        if let Some(special) = self.special.get_mut(id as usize) {
            *special = true;
        }
    }

    pub(crate) fn bytes(&self, id: u32) -> Result<&[u8], TextError> {
        let known = self.bytes.get(id as usize).and_then(|b| b.as_deref());
        known.ok_or(TextError::UnknownId { id, vocab_size: self.len() })
    }
}
