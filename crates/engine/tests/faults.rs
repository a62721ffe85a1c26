//! Disks that misbehave: a transient fault changes nothing, a lasting one ends in its named error and leaves the engine
//! usable, and no fault ever becomes a wrong number.

mod common;

use std::path::PathBuf;

use calypte_disk::{Disk, DiskOptions, WeightPath};
use calypte_engine::checkpoint::{self, Catalog};
use calypte_engine::{Engine, ErrorKind, Options, Size};
use calypte_testkit::faulty::{Fault, FaultKind, FaultScript, FaultyBackend};
use common::{Expected, fixtures, never};

fn catalog() -> Catalog {
    let path: PathBuf = fixtures().join("glm_moe_dsa-a/model.gguf");
    checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"))
}

/// The fixture's engine with the smallest cache over a disk that follows `script`. Reads number from 0 with the resident
/// weights, one each, so `first_expert_read` is safely among the experts'. `prefetch`: also on guesses, whose failures are nobody's
/// errors unless a step waits for them.
fn engine(script: FaultScript, prefetch: bool) -> Engine {
    let catalog = catalog();
    let files: Vec<WeightPath> =
        catalog.files.iter().map(|f| WeightPath { path: f.path.clone(), size_bytes: f.size_bytes }).collect();
    let disk = Disk::open(&files, &DiskOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let disk = disk.map_backend(|b| Box::new(FaultyBackend::new(b, script)));
    let options = Options { expert_cache: Some(Size::Min), context: 64, prefetch, ..Options::default() };
    Engine::with_disk(catalog, disk, &options, &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

fn first_expert_read() -> u64 {
    catalog().tensors.len() as u64
}

fn digest(engine: &mut Engine) -> Result<[u8; 32], calypte_engine::EngineError> {
    let ids = Expected::read(&fixtures().join("glm_moe_dsa-a")).prompt_ids;
    engine.score(&ids, &mut |_| {}, &mut |_, _| {}, &mut (), &never()).map(|s| s.logits_sha256)
}

#[test]
fn transient_faults_and_odd_orders_change_nothing() {
    let want = digest(&mut engine(FaultScript::new(), true)).expect("a healthy disk");
    let at = first_expert_read();
    let scripts = [
        FaultScript::new().at(at, Fault::ShortThenOk).at(at + 3, Fault::ShortThenOk),
        FaultScript::new().from(at, Fault::HoldBack(2)),
        FaultScript::new().at(at + 1, Fault::Delay(std::time::Duration::from_millis(30))),
        FaultScript::new().shuffle(1),
        FaultScript::new().shuffle(99),
    ];
    for (i, script) in scripts.into_iter().enumerate() {
        for prefetch in [false, true] {
            let got = digest(&mut engine(script.clone(), prefetch)).expect("an answer");
            assert_eq!(got, want, "script {i}, prefetch {prefetch}");
        }
    }
}

#[test]
fn lasting_faults_are_named_and_the_engine_goes_on() {
    let want = digest(&mut engine(FaultScript::new(), true)).expect("a healthy disk");
    for (kind, words) in [
        (FaultKind::Truncated, "truncated"),
        (FaultKind::Gone, "gone"),
        (FaultKind::Permission, "permission"),
        (FaultKind::OutOfDescriptors, "descriptors"),
        (FaultKind::TimedOut, "timed out"),
        (FaultKind::Io, "offset"),
    ] {
        let script = FaultScript::new().at(first_expert_read() + 2, Fault::Fail(kind));
        let mut engine = engine(script, false);
        let error = digest(&mut engine).expect_err("the disk failed");
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Run, "{kind:?}: {message}");
        assert!(message.contains("faulty/0") && message.contains("expert"), "{kind:?}: {message}");
        let whole = format!("{message} {}", common::causes(&error)).to_lowercase();
        assert!(whole.contains(words), "{kind:?}: {whole}");
        // The failed step left nothing behind: the next try gives the right answer.
        assert_eq!(digest(&mut engine).expect("a second try"), want, "{kind:?}");
    }
}
