//! Experts that are stored in another order than they are leased in.

mod common;

use std::sync::Arc;

use calypte_residency::policy::by_name;
use calypte_residency::{Arrange, ExpertCache, Lease, ResidencyError};
use common::Model;

const MATRIX_BYTES: usize = 40;

/// Reverses each piece and leaves `extra` bytes between gate and up, so that what is leased is larger than what is read.
#[derive(Debug)]
struct Reversed {
    extra: usize,
    fails: bool,
}

impl Arrange for Reversed {
    fn matrix_bytes(&self) -> [usize; 3] {
        [MATRIX_BYTES + self.extra, MATRIX_BYTES, MATRIX_BYTES]
    }

    fn arrange(&self, pieces: &[&[u8]], out: &mut [u8]) -> Result<(), String> {
        if self.fails {
            return Err("the pieces are of the wrong kind".to_owned());
        }
        let mut at = 0;
        for (piece, bytes) in pieces.iter().zip(self.matrix_bytes()) {
            let to = &mut out[at..at + bytes];
            to.fill(0);
            to.iter_mut().zip(piece.iter().rev()).for_each(|(to, from)| *to = *from);
            at += bytes;
        }
        Ok(())
    }
}

fn cache(model: &mut Model, extra: usize, fails: bool) -> ExpertCache {
    for layer in &mut model.layers {
        layer.arrange = Some(Arc::new(Reversed { extra, fails }));
    }
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    assert!(floor >= 2 * (3 * MATRIX_BYTES + extra) as u64, "two slots hold what is leased: {floor}");
    ExpertCache::new(model.layers.clone(), floor, by_name("lru").unwrap(), model.disk()).unwrap()
}

/// An expert and its gate, up and down.
type Leased = (u32, [Vec<u8>; 3]);

fn leases(cache: &mut ExpertCache, union: &[u32]) -> Result<Vec<Leased>, ResidencyError> {
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    cache.begin(0, union);
    while cache.ready(&mut out)? {
        for lease in out.drain(..) {
            let matrices = |l: &Lease| [l.gate().to_vec(), l.up().to_vec(), l.down().to_vec()];
            seen.push((lease.expert, matrices(&lease)));
            cache.release(lease);
        }
    }
    seen.sort();
    Ok(seen)
}

/// Two passes over all experts through two slots: everything is read and arranged again, and nothing differs.
#[track_caller]
fn check(extra: usize) {
    let shape = [(4, 2, MATRIX_BYTES)];
    let all = [0, 1, 2, 3];
    let mut plain = Model::new(&shape);
    let budget = u64::MAX;
    let policy = by_name("lru").unwrap();
    let mut stored = ExpertCache::new(plain.layers.clone(), budget, policy, plain.disk()).unwrap();
    let want: Vec<_> = leases(&mut stored, &all)
        .unwrap()
        .into_iter()
        .map(|(expert, mut matrices)| {
            matrices.iter_mut().for_each(|m| m.reverse());
            matrices[0].resize(MATRIX_BYTES + extra, 0);
            (expert, matrices)
        })
        .collect();
    let mut cache = cache(&mut plain, extra, false);
    for _ in 0..2 {
        assert_eq!(leases(&mut cache, &all).unwrap(), want);
        assert!(cache.resident_bytes() <= cache.budget_bytes());
    }
    assert!(cache.stats().evictions > 0);
}

#[test]
fn what_is_leased_is_what_was_arranged() {
    check(0);
    check(1000);
}

#[test]
fn what_cannot_be_arranged_is_named_and_the_cache_goes_on() {
    let mut model = Model::new(&[(4, 2, MATRIX_BYTES)]);
    let mut cache = cache(&mut model, 0, true);
    for _ in 0..2 {
        let error = leases(&mut cache, &[1]).expect_err("it cannot be arranged");
        assert!(matches!(error, ResidencyError::Arrange { layer: 0, expert: 1, .. }), "{error}");
        assert!(error.to_string().contains("wrong kind"), "{error}");
        cache.abort();
        assert!(!cache.resident(0, 1));
    }
}
