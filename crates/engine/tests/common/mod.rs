//! What the engine's test files share.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use calypte_engine::sampler::Sampling;
use calypte_engine::{Engine, Event, Generation, Observer, Outcome};
use safetensors::SafeTensors;

/// The committed fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The directories of all committed checkpoints, in the order of their names.
pub fn checkpoints() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures()).expect("fixtures");
    let dirs = entries.map(|e| e.expect("an entry").path()).filter(|d| d.join("expected.json").exists());
    let mut dirs: Vec<PathBuf> = dirs.collect();
    dirs.sort();
    assert!(dirs.len() > 20, "{dirs:?}");
    dirs
}

/// A cancellation that never comes.
pub fn never() -> AtomicBool {
    AtomicBool::new(false)
}

/// What the reference computed for a fixture.
pub struct Expected {
    pub prompt_ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
    tensors: Vec<u8>,
}

impl Expected {
    pub fn read(dir: &Path) -> Expected {
        let json = std::fs::read_to_string(dir.join("expected.json")).expect("expected.json");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let ids = |key: &str| {
            let list = json[key].as_array().expect("a list of ids");
            list.iter().map(|v| v.as_u64().expect("an id") as u32).collect()
        };
        Expected {
            prompt_ids: ids("prompt_ids"),
            greedy_ids: ids("greedy_ids"),
            tensors: std::fs::read(dir.join("expected.safetensors")).expect("expected.safetensors"),
        }
    }

    fn words<T>(&self, name: &str, from: fn([u8; 4]) -> T) -> Vec<T> {
        let file = SafeTensors::deserialize(&self.tensors).expect("safetensors");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|c| from([c[0], c[1], c[2], c[3]])).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        self.words(name, i32::from_le_bytes)
    }
}

/// Logits of every row of `ids`.
pub fn logits_of(engine: &mut Engine, ids: &[u32], observer: &mut dyn Observer) -> Vec<f32> {
    let mut logits = Vec::new();
    engine
        .score(ids, &mut |row| logits.extend_from_slice(row), &mut |_, _| {}, observer, &never())
        .unwrap_or_else(|e| panic!("{e}"));
    logits
}

/// Greedy generation of `n` ids, end tokens ignored.
pub fn greedy(engine: &mut Engine, prompt: &[u32], n: usize) -> (Vec<u32>, Outcome) {
    let mut session = engine.session();
    let generation = Generation {
        tokens_max: n,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ignore_eos: true,
        stops: Vec::new(),
    };
    let outcome = engine
        .generate(&mut session, prompt, &generation, &mut |_: Event<'_>| {}, &mut (), &never())
        .unwrap_or_else(|e| panic!("{e}"));
    (outcome.ids.clone(), outcome)
}

/// The messages of everything that caused an error.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut out = String::new();
    let mut next = error.source();
    while let Some(cause) = next {
        out.push_str(&format!(" / {cause}"));
        next = cause.source();
    }
    out
}
