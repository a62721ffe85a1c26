//! The committed seeds, for running the bodies as plain tests.

use std::path::Path;

/// Cut and changed at this many places each.
const DAMAGES: usize = 16;

/// Runs `body` over every seed of a target as it is, and over versions that are cut off and changed at places spread
/// evenly.
pub fn each_seed(target: &str, body: impl Fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus-seeds").join(target);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&dir).expect("the seeds") {
        let seed = std::fs::read(entry.expect("an entry").path()).expect("a seed");
        body(&seed);
        for i in 0..DAMAGES {
            let at = seed.len() * i / DAMAGES;
            body(&seed[..at]);
            let mut changed = seed.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 0x80 >> (i % 8);
            }
            body(&changed);
        }
        seeds += 1;
    }
    assert!(seeds > 0, "no seeds in {}", dir.display());
}
