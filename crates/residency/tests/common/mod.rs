//! A small model with distinct bytes in every matrix, and a backend that does what a script says.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use calypte_disk::{
    Backend, Completion, Disk, DiskError, Extent, FailedRead, Failure, FileId, IoMode, ReadRequest,
};
use calypte_residency::{ExpertCache, LayerExperts, Lease};

/// Experts in one file, expert after expert, with a gap before each matrix so that nothing is aligned.
pub struct Model {
    pub layers: Vec<LayerExperts>,
    pub bytes: Arc<[u8]>,
}

/// A byte of a matrix: no two matrices agree in many places.
fn pattern(layer: usize, expert: u32, matrix: usize, at: usize) -> u8 {
    let seed = (layer * 1009 + expert as usize * 31 + matrix * 7 + 1) as u32;
    (seed.wrapping_mul(0x9E37_79B1) >> 16) as u8 ^ (at as u8).wrapping_mul(seed as u8 | 1)
}

impl Model {
    /// Layers as (experts, top_k, bytes of a matrix). Later experts lie before earlier ones in the file.
    pub fn new(layers: &[(usize, usize, usize)]) -> Model {
        let mut bytes = Vec::new();
        let mut all = Vec::new();
        for (layer, &(experts, top_k, matrix_bytes)) in layers.iter().enumerate() {
            let mut extents = Vec::new();
            for expert in (0..experts as u32).rev() {
                extents.push(Vec::from([0, 1, 2].map(|matrix| {
                    bytes.extend_from_slice(&[0xEE; 3]);
                    let offset = bytes.len() as u64;
                    bytes.extend((0..matrix_bytes).map(|at| pattern(layer, expert, matrix, at)));
                    Extent { file: FileId(0), offset, len: matrix_bytes as u64 }
                })));
            }
            extents.reverse();
            all.push(LayerExperts { extents, top_k, arrange: None });
        }
        Model { layers: all, bytes: bytes.into() }
    }

    pub fn disk(&self) -> Disk {
        Disk::from_memory(vec![(PathBuf::from("model"), Arc::clone(&self.bytes))])
    }

    /// Where an expert begins.
    pub fn offset(&self, layer: usize, expert: u32) -> u64 {
        self.layers[layer].extents[expert as usize][0].offset
    }
}

/// A lease shows exactly the bytes of its expert.
pub fn check_lease(model: &Model, lease: &Lease) {
    let extents = &model.layers[lease.layer()].extents[lease.expert as usize];
    for (matrix, (view, extent)) in [lease.gate(), lease.up(), lease.down()].iter().zip(extents).enumerate() {
        let expected: Vec<u8> =
            (0..extent.len as usize).map(|at| pattern(lease.layer(), lease.expert, matrix, at)).collect();
        assert_eq!(*view, expected, "matrix {matrix} of {} {}", lease.layer(), lease.expert);
    }
}

/// A whole step: every expert once, the right bytes, within the budget.
pub fn run_step(cache: &mut ExpertCache, model: &Model, layer: usize, union: &[u32]) {
    assert!(try_step(cache, model, layer, union, &mut |_| 0), "a read failed");
}

/// As `run_step`, releasing leases in an order that `choose` gives; `false` when a read failed.
pub fn try_step(
    cache: &mut ExpertCache,
    model: &Model,
    layer: usize,
    union: &[u32],
    choose: &mut dyn FnMut(usize) -> usize,
) -> bool {
    cache.begin(layer, union);
    let mut seen = Vec::new();
    let mut out = Vec::new();
    loop {
        match cache.ready(&mut out) {
            Ok(true) => assert!(!out.is_empty()),
            Ok(false) => break,
            // What was leased is dropped here, not released.
            Err(_) => return false,
        }
        assert!(cache.resident_bytes() <= cache.budget_bytes());
        // Now and then a lease is kept for the next round.
        let keep = usize::from(out.len() > 1 && choose(3) == 1);
        while out.len() > keep {
            let lease = out.swap_remove(choose(out.len()));
            assert_eq!(lease.layer(), layer);
            assert!(cache.resident(layer, lease.expert));
            check_lease(model, &lease);
            seen.push(lease.expert);
            cache.release(lease);
        }
    }
    for lease in out {
        check_lease(model, &lease);
        seen.push(lease.expert);
        cache.release(lease);
    }
    seen.sort_unstable();
    let expected: BTreeSet<u32> = union.iter().copied().collect();
    assert_eq!(seen, expected.into_iter().collect::<Vec<_>>(), "each exactly once");
    assert_eq!(cache.disk().demand_in_flight(), 0);
    true
}

/// What a scripted backend does and saw.
#[derive(Clone, Default)]
pub struct Script {
    /// Requests whose first extent begins here fail.
    pub fail: Arc<Mutex<BTreeSet<u64>>>,
    /// One request in so many fails; 0 for none.
    pub fail_one_in: Arc<AtomicUsize>,
    /// First offsets in the order of submission.
    pub submitted: Arc<Mutex<Vec<u64>>>,
    /// Tickets that were called off, as often as the script chose to obey.
    pub cancelled: Arc<Mutex<Vec<u64>>>,
}

/// A disk over the model in memory that completes in random order.
pub fn scripted(model: &Model, script: &Script, seed: u64) -> Disk {
    let script = script.clone();
    model.disk().map_backend(|inner| {
        Box::new(Scripted { inner, script, held: Vec::new(), choose: Box::new(chooser(seed)) })
    })
}

struct Scripted {
    inner: Box<dyn Backend>,
    script: Script,
    held: Vec<Completion>,
    choose: Box<dyn FnMut(usize) -> usize + Send>,
}

impl Backend for Scripted {
    fn submit(&mut self, request: ReadRequest) {
        let first = request.extents[0];
        self.script.submitted.lock().unwrap().push(first.offset);
        let one_in = self.script.fail_one_in.load(Ordering::Relaxed);
        let fails = self.script.fail.lock().unwrap().contains(&first.offset)
            || one_in > 0 && (self.choose)(one_in) == 0;
        if fails {
            let mut buffer = request.buffer;
            // Half a read: whoever looks at it sees wrong bytes.
            buffer.as_mut_slice().fill(0xBD);
            let error = DiskError {
                path: PathBuf::from("model"),
                offset: first.offset,
                len: first.len,
                failure: Failure::Gone,
            };
            let result = Err(FailedRead { error, buffer });
            self.held.push(Completion { ticket: request.ticket, result });
        } else {
            self.inner.submit(request);
            self.held.extend(self.inner.wait());
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        if (self.choose)(2) == 0 { None } else { self.wait() }
    }

    fn wait(&mut self) -> Option<Completion> {
        if self.held.is_empty() {
            return None;
        }
        let at = (self.choose)(self.held.len());
        Some(self.held.swap_remove(at))
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    /// Now and then there is something left to call off.
    fn cancel(&mut self, ticket: u64) -> bool {
        let obeys = (self.choose)(2) == 0;
        let at = self.held.iter().position(|held| held.ticket == ticket && held.result.is_ok());
        let (true, Some(at)) = (obeys, at) else { return false };
        let Completion { result: Ok(loaded), .. } = self.held.swap_remove(at) else { return false };
        let mut buffer = loaded.into_buffer();
        buffer.as_mut_slice().fill(0xBC);
        let error =
            DiskError { path: PathBuf::from("model"), offset: 0, len: 1, failure: Failure::Cancelled };
        self.held.push(Completion { ticket, result: Err(FailedRead { error, buffer }) });
        self.script.cancelled.lock().unwrap().push(ticket);
        true
    }

    fn mode(&self) -> IoMode {
        self.inner.mode()
    }

    fn align_bytes(&self, file: FileId) -> usize {
        self.inner.align_bytes(file)
    }
}

/// A choice out of `count`, from a stream of random numbers that never ends.
pub fn chooser(seed: u64) -> impl FnMut(usize) -> usize + Send {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |count| {
        // Xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % count.max(1) as u64) as usize
    }
}
