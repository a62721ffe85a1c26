//! A replay of a recorded run is the run: the same hits, misses and evictions, in the same order.

mod common;

use std::num::NonZeroUsize;
use std::sync::Arc;

use calypte_disk::{Disk, DiskOptions, WeightPath};
use calypte_engine::sampler::Sampling;
use calypte_engine::{Engine, Generation, Guess, Observer, Options, Predictor, Size, checkpoint};
use calypte_replay::{
    Log, Memory, RECORDED, Recorder, Setting, Timing, Trace, TraceLayer, Uses, Watched, What, replay_watched,
};
use calypte_residency::policy;
use common::{Expected, fixtures, never};

struct Routes(Recorder);

impl Observer for Routes {
    fn step_begins(&mut self, position: usize) {
        self.0.step_begins(position);
    }

    fn routed(&mut self, layer: usize, _position: usize, experts: &[u32], _weights: &[f32]) {
        self.0.routed(layer, experts);
    }

    fn guessed(&mut self, layer: usize, guesses: &[Guess]) {
        self.0.guessed(layer, guesses);
    }
}

/// Two conversations with a fixture, watched and recorded.
fn record(
    fixture: &str,
    policy: &str,
    predictor: &Predictor,
    cache: Size,
    chunk: usize,
) -> (Vec<Watched>, Trace) {
    let path = fixtures().join(fixture);
    let catalog = checkpoint::open(&path.join("model.gguf")).unwrap_or_else(|e| panic!("{e}"));
    let files: Vec<WeightPath> =
        catalog.files.iter().map(|f| WeightPath { path: f.path.clone(), size_bytes: f.size_bytes }).collect();
    let disk = Disk::open(&files, &DiskOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let options = Options {
        expert_cache: Some(cache),
        prefill_chunk: NonZeroUsize::new(chunk).expect("not zero"),
        context: 128,
        predictor: predictor.clone(),
        // What is read on guesses, and in time, is up to the disk.
        prefetch: false,
        ..Options::default()
    };
    let log = Log::default();
    let watched = log.watch(policy::by_name(policy).expect("a policy"));
    let mut engine = Engine::with_policy(catalog, disk, watched, &options, &mut ())
        .unwrap_or_else(|e| panic!("{fixture}: {e}"));
    let layers = engine.expert_slots().into_iter().map(|(number, size)| TraceLayer::new(number, size));
    let mut routes = Routes(Recorder::new(layers.collect()));
    let prompt = Expected::read(&path).prompt_ids;
    for seed in [1, 2] {
        let generation = Generation {
            tokens_max: 24,
            sampling: Sampling { seed, ..Sampling::default() },
            ignore_eos: true,
            stops: Vec::new(),
        };
        let mut session = engine.session();
        engine
            .generate(&mut session, &prompt, &generation, &mut |_| {}, &mut routes, &never())
            .unwrap_or_else(|e| panic!("{fixture}: {e}"));
    }
    let mut trace = routes.0.finish();
    trace.budget_bytes = engine.budget().expert_bytes;
    trace.predictor = engine.predictor().map(Predictor::to_string).unwrap_or_default();
    let stats = engine.cache_stats();
    let count = |what| log.events().iter().filter(|event| event.what == what).count() as u64;
    assert_eq!(
        (count(What::Hit), count(What::Miss), count(What::Evicted)),
        (stats.hits, stats.misses, stats.evictions)
    );
    (log.events(), trace)
}

/// Experts that a step passes through the cache because it needs more than there are slots go as their reads arrive,
/// which is up to the disk: they are compared as a set within their step.
fn in_order(mut events: Vec<Watched>) -> Vec<Watched> {
    events.chunk_by_mut(|a, b| (a.step, a.key.layer, a.what) == (b.step, b.key.layer, b.what)).for_each(
        |run| {
            run.sort_by_key(|event| event.key);
        },
    );
    events
}

fn check(fixture: &str, policy: &str, predictor: &str, cache: Size, chunk: usize) {
    let case = format!("{fixture}, {policy}, {predictor}, {cache:?}, chunks of {chunk}");
    let predictor: Predictor = predictor.parse().unwrap_or_else(|e| panic!("{case}: {e}"));
    let (run, trace) = record(fixture, policy, &predictor, cache, chunk);
    // The file keeps everything that matters.
    let trace =
        Arc::new(Trace::from_bytes(fixture.as_ref(), &trace.to_bytes()).unwrap_or_else(|e| panic!("{e}")));
    let setting = Setting {
        policy: policy.to_owned(),
        predictor: if trace.predictor.is_empty() { "none" } else { RECORDED }.to_owned(),
        memory: Memory::Bytes(trace.budget_bytes),
        prefetch: false,
        layers_ahead: 1,
        timing: Timing::default(),
    };
    let uses = Arc::new(Uses::of(&trace));
    let (_, log) = replay_watched(&trace, &uses, &setting).unwrap_or_else(|e| panic!("{case}: {e}"));
    let replayed = log.events();
    assert!(run.iter().any(|event| event.what == What::Hit), "{case}: something was hit");
    if cache != Size::All {
        assert!(run.iter().any(|event| event.what == What::Evicted), "{case}: something was evicted");
    }
    if chunk == 1 {
        assert!(run == replayed, "{case}");
    }
    assert!(in_order(run) == in_order(replayed), "{case}");
}

#[test]
fn a_replay_is_the_run() {
    for fixture in ["qwen3_moe-a", "glm_moe_dsa-a", "gpt_oss-a"] {
        for policy in policy::NAMES {
            check(fixture, policy, "none", Size::Percent(60.0), 1);
        }
        for cache in [Size::Min, Size::Percent(50.0), Size::All] {
            for chunk in [1, 3, 16] {
                check(fixture, policy::DEFAULT, "none", cache, chunk);
            }
        }
    }
}

/// With its guesses in the trace, a run whose predictor needed the model is replayed without one.
#[test]
fn recorded_guesses_do_what_they_did() {
    for policy in ["least_stale", "spac", "elb", "successor", "forecast"] {
        for predictor in ["gate_ahead", "learned:2", "prev_token"] {
            check("qwen3_moe-a", policy, predictor, Size::Percent(60.0), 1);
        }
        check("glm_moe_dsa-a", policy, "learned", Size::Percent(60.0), 3);
    }
    // Where everything stays in memory nobody is asked, and the trace names nobody.
    let (_, trace) = record("qwen3_moe-a", policy::DEFAULT, &Predictor::default(), Size::All, 1);
    assert_eq!(trace.predictor, "");
}
