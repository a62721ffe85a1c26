//! Memory for experts, never more than the budget.

use std::collections::BTreeMap;

use calypte_disk::Buffer;

/// Hands out buffers of exact sizes and keeps those that come back for the next of the same size.
pub(super) struct BufferPool {
    budget_bytes: u64,
    /// Bytes of every buffer that exists, in use or idle.
    held_bytes: u64,
    /// Buffers that nobody uses, by capacity in bytes. There are as many lists as sizes, which are few.
    idle: BTreeMap<usize, Vec<Buffer>>,
    allocated: u64,
}

impl BufferPool {
    pub(super) fn new(budget_bytes: u64) -> BufferPool {
        BufferPool { budget_bytes, held_bytes: 0, idle: BTreeMap::new(), allocated: 0 }
    }

    /// A buffer of exactly `bytes` bytes, or `None` when the system has no such memory. The caller has made sure that all
    /// buffers in use fit the budget with it; idle ones of other sizes make way.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        if let Some(buffer) = self.idle.get_mut(&bytes).and_then(Vec::pop) {
            return Some(buffer);
        }
        if !self.make_room(bytes as u64) {
            return None;
        }
        let buffer = Buffer::try_with_capacity(bytes)?;
        self.held_bytes += bytes as u64;
        self.allocated += 1;
        Some(buffer)
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.idle.entry(buffer.capacity()).or_default().push(buffer);
    }

    /// From now on at most so many bytes; what nobody uses goes back to the system until that is so.
    pub(super) fn shrink(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.make_room(0);
    }

    /// Gives idle buffers back to the system until `bytes` more fit the budget; `false` if they never do.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.held_bytes.saturating_add(bytes) > self.budget_bytes {
            let Some(idle) = self.idle.values_mut().rev().find_map(Vec::pop) else { return false };
            self.lost(idle.capacity() as u64);
        }
        true
    }

    /// `bytes` bytes in use will not come back.
    pub(super) fn lost(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn allocated(&self) -> u64 {
        self.allocated
    }

    pub(super) fn reset_allocated(&mut self) {
        self.allocated = 0;
    }
}
