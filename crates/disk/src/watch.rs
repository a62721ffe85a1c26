//! The lives of requests, for those who draw them: when each was submitted, issued and complete.
//!
//! Nothing here is read or written unless somebody asked for it ([`crate::Disk::watch`]).

use std::collections::BTreeMap;
use std::time::Instant;

use crate::Failure;
use crate::backend::{Completion, Priority, Times};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// With every byte.
    Complete,
    /// It was called off.
    Cancelled,
    /// It failed.
    Failed,
    /// It is still in flight.
    Open,
}

/// One request from its submission to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLife {
    /// When it was submitted.
    pub submitted: Instant,
    /// When its first read was given to the system; `None` when none was, or the backend does not say.
    pub issued: Option<Instant>,
    /// When its last read ended; where the backend does not say, when its completion was handed out.
    pub ended: Instant,
    /// How urgent it was when it was submitted.
    pub priority: Priority,
    /// Whether it could wait at first and became a demand.
    pub promoted: bool,
    /// How it ended.
    pub end: ReadEnd,
    /// Bytes that its reads returned, alignment and repetitions included.
    pub bytes_transferred: u64,
}

/// Requests in flight, by their tickets, and the one that completed last.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    open: BTreeMap<u64, ReadLife>,
    last: Option<ReadLife>,
}

impl Watch {
    pub fn submitted(&mut self, ticket: u64, priority: Priority) {
        let now = Instant::now();
        let life = ReadLife {
            submitted: now,
            issued: None,
            ended: now,
            priority,
            promoted: false,
            end: ReadEnd::Open,
            bytes_transferred: 0,
        };
        self.open.insert(ticket, life);
    }

    pub fn promoted(&mut self, ticket: u64) {
        if let Some(life) = self.open.get_mut(&ticket) {
            life.promoted = true;
        }
    }

    /// `times` are the backend's, if it takes note of any.
    pub fn completed(&mut self, completion: &Completion, times: Option<Times>) {
        self.last = self.open.remove(&completion.ticket).map(|life| {
            let bytes = completion.result.as_ref().map_or(0, |loaded| loaded.useful_bytes());
            ReadLife {
                issued: times.and_then(|times| times.issued),
                ended: times.and_then(|times| times.ended).unwrap_or_else(Instant::now).max(life.submitted),
                end: match &completion.result {
                    Ok(_) => ReadEnd::Complete,
                    Err(failed) if matches!(failed.error.failure, Failure::Cancelled) => ReadEnd::Cancelled,
                    Err(_) => ReadEnd::Failed,
                },
                bytes_transferred: times.map_or(bytes, |times| times.bytes_transferred),
                ..life
            }
        });
    }

    pub fn last(&self) -> Option<ReadLife> {
        self.last
    }

    pub fn open(&self) -> impl Iterator<Item = (u64, ReadLife)> {
        let now = Instant::now;
        self.open.iter().map(move |(&ticket, &life)| (ticket, ReadLife { ended: now(), ..life }))
    }
}
