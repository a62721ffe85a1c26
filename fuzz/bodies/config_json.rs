//! `config.json`.

use calypte_checkpoint::fuzzing::{PATH, config};

/// Whatever the bytes are: no panic, and an error that names the file, at the latest because there are no weights.
pub fn run(data: &[u8]) {
    match config(data) {
        Ok(family) => panic!("a {family} model without a single tensor was accepted"),
        Err(error) => assert!(error.to_string().contains(PATH), "no path in: {error}"),
    }
}
