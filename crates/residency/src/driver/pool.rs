//! Memory for experts, never more than the budget.

use std::collections::BTreeMap;

use calypte_disk::Buffer;

/// Idle memory up to which more is made ready in advance, in bytes: what a layer of a long prompt may ask for at once.
const READY_BYTES_MAX: u64 = 256 << 20;
/// And as a share of all memory of the pool, so that a short run does not take much that it never needs. One buffer may always be ready.
const READY_SHARE: u64 = 4;
/// Bytes that are made ready at a time: some 100 us, which is how much later the caller hears of a read that has landed.
const POPULATED_BYTES: usize = 256 << 10;

/// Hands out buffers of exact sizes and keeps those that come back for the next of the same size.
pub(super) struct BufferPool {
    budget_bytes: u64,
    /// Bytes of every buffer that exists, in use or idle.
    held_bytes: u64,
    /// Buffers that nobody uses, by capacity in bytes. There are as many lists as sizes, which are few.
    idle: BTreeMap<usize, Vec<Buffer>>,
    /// One that is being made ready, and how much of it is.
    coming: Option<(Buffer, usize)>,
    allocated: u64,
}

impl BufferPool {
    pub(super) fn new(budget_bytes: u64) -> BufferPool {
        BufferPool { budget_bytes, held_bytes: 0, idle: BTreeMap::new(), coming: None, allocated: 0 }
    }

    /// A buffer of exactly `bytes` bytes, or `None` when the system has no such memory. The caller has made sure that all
    /// buffers in use fit the budget with it; idle ones of other sizes make way.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        if let Some(buffer) = self.idle.get_mut(&bytes).and_then(Vec::pop) {
            return Some(buffer);
        }
        if let Some((buffer, _)) = self.coming.take_if(|(buffer, _)| buffer.capacity() == bytes) {
            return Some(buffer);
        }
        if !self.make_room(bytes as u64) {
            return None;
        }
        self.allocate(bytes)
    }

    fn allocate(&mut self, bytes: usize) -> Option<Buffer> {
        let buffer = Buffer::try_with_capacity(bytes)?;
        self.held_bytes += bytes as u64;
        self.allocated += 1;
        Some(buffer)
    }

    /// Has the system find and clear a little of the memory that buffers of `bytes` bytes will need; `false` when there is nothing to do. For
    /// somebody who has to wait anyway: a read into memory that nobody has touched waits for that.
    pub(super) fn make_ready(&mut self, bytes: usize) -> bool {
        let Some((mut buffer, done)) = self.coming.take().or_else(|| Some((self.spare(bytes)?, 0))) else {
            return false;
        };
        let end = (done + POPULATED_BYTES).min(buffer.capacity());
        buffer.populate(done..end);
        if end < buffer.capacity() {
            self.coming = Some((buffer, end));
        } else {
            self.give_back(buffer);
        }
        true
    }

    /// A new buffer beyond those that are needed by now, if the budget has room and there are not enough of them.
    fn spare(&mut self, bytes: usize) -> Option<Buffer> {
        let idle_bytes: usize = self.idle.iter().map(|(bytes, buffers)| bytes * buffers.len()).sum();
        let ready_bytes_max = READY_BYTES_MAX.min(self.held_bytes / READY_SHARE);
        let enough = idle_bytes > 0 && (idle_bytes + bytes) as u64 > ready_bytes_max;
        if bytes == 0 || enough || self.held_bytes.saturating_add(bytes as u64) > self.budget_bytes {
            return None;
        }
        self.allocate(bytes)
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
            let coming = self.coming.take().map(|(buffer, _)| buffer);
            let Some(idle) = coming.or_else(|| self.idle.values_mut().rev().find_map(Vec::pop)) else {
                return false;
            };
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 3 * POPULATED_BYTES + 4096;

    /// Prepares until there is nothing to do; how many buffers then are ready.
    fn ready(pool: &mut BufferPool, bytes: usize) -> usize {
        let rounds = (0..10_000).take_while(|_| pool.make_ready(bytes)).count();
        assert!(rounds < 10_000, "it ends");
        assert!(pool.coming.is_none());
        pool.idle.values().map(Vec::len).sum()
    }

    #[test]
    fn as_much_is_made_ready_as_the_budget_has_and_a_share_of_what_is_there() {
        let mut pool = BufferPool::new(20 * BYTES as u64);
        assert_eq!(ready(&mut pool, BYTES), 1, "one always may be");
        let used: Vec<Buffer> = (0..16).map(|_| pool.take(BYTES).expect("memory")).collect();
        assert_eq!(
            (pool.held_bytes(), pool.allocated()),
            (16 * BYTES as u64, 16),
            "the ready one among them"
        );
        assert_eq!(ready(&mut pool, BYTES), 4, "the whole budget");
        assert_eq!(pool.held_bytes(), 20 * BYTES as u64);
        pool.shrink(18 * BYTES as u64);
        assert_eq!((ready(&mut pool, BYTES), pool.held_bytes()), (2, 18 * BYTES as u64));
        used.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert_eq!(ready(&mut pool, BYTES), 18, "and no new ones beside so many idle ones");
        assert_eq!(ready(&mut pool, 0), 18, "of no size");
    }

    #[test]
    fn what_is_half_ready_can_be_taken_and_makes_way() {
        let mut pool = BufferPool::new(BYTES as u64);
        assert!(pool.make_ready(BYTES));
        let buffer = pool.take(BYTES).expect("the one that is coming");
        assert_eq!((buffer.capacity(), pool.allocated()), (BYTES, 1));
        assert!(!pool.make_ready(BYTES), "the budget is used up");
        pool.give_back(buffer);
        // Another size: what is idle goes back first, and so does what is coming.
        assert!(pool.take(BYTES / 2).is_some_and(|buffer| buffer.capacity() == BYTES / 2));
        pool.lost(BYTES as u64 / 2);
        assert!(pool.make_ready(BYTES));
        assert!(pool.take(BYTES / 2).is_some());
        assert_eq!(pool.held_bytes(), BYTES as u64 / 2);
    }
}
