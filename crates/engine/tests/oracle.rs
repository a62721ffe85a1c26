//! The engine against the reference implementation: every family, from both file formats.
//!
//! `fixtures/` holds tiny random checkpoints with what transformers 5.24 computes for them in f32 (see
//! `tools/oracle/README.md`): prompt logits, greedy ids, router choices and indexer selections.

mod common;

use std::path::{Path, PathBuf};

use calypte_engine::{Engine, Observer, Options, Precision, Size};
use common::{Expected, greedy, logits_of, never};

/// Largest difference allowed, relative to the largest logit of the prompt.
const RELATIVE_MAX: f32 = 1e-4;

/// What the model decided, in the shapes of the fixtures.
#[derive(Default)]
struct Decisions {
    routed: Vec<(usize, usize, Vec<u32>, Vec<f32>)>,
    selected: Vec<(usize, usize, Option<Vec<u32>>)>,
}

impl Observer for Decisions {
    fn routed(&mut self, layer: usize, position: usize, experts: &[u32], weights: &[f32]) {
        self.routed.push((layer, position, experts.to_vec(), weights.to_vec()));
    }

    fn selected(&mut self, layer: usize, position: usize, positions: Option<&[u32]>) {
        self.selected.push((layer, position, positions.map(<[u32]>::to_vec)));
    }
}

fn open(model: &Path, precision: Precision) -> Engine {
    let options = Options { expert_cache: Some(Size::Min), precision, context: 128, ..Options::default() };
    Engine::open(model, &options, &mut ()).unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

/// Everything that is recorded for a fixture.
#[track_caller]
fn check(model: PathBuf, precision: Precision) {
    let expected = Expected::read(if model.is_dir() { &model } else { model.parent().expect("a directory") });
    let mut engine = open(&model, precision);
    let name = model.display();
    let mut decisions = Decisions::default();
    let got = logits_of(&mut engine, &expected.prompt_ids, &mut decisions);
    let want = expected.f32("prompt_logits");
    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / largest;
    assert_eq!(got.len(), want.len(), "{name}: shape of the logits");
    assert!(worst <= RELATIVE_MAX, "{name}: logits differ by {worst:e} of the largest");

    check_routing(
        &format!("{name}"),
        &expected,
        &decisions,
        engine.catalog().arch.moe.as_ref().map_or(0, |m| m.top_k),
    );
    check_selection(&format!("{name}"), &expected, &engine, &decisions);
    let (ids, _) = greedy(&mut engine, &expected.prompt_ids, expected.greedy_ids.len());
    assert_eq!(ids, expected.greedy_ids, "{name}: greedy ids");
}

fn check_routing(name: &str, expected: &Expected, decisions: &Decisions, k: usize) {
    if k == 0 {
        assert!(decisions.routed.is_empty());
        return;
    }
    let (experts, weights) = (expected.i32("router_experts"), expected.f32("router_weights"));
    assert_eq!(decisions.routed.len() * k, experts.len(), "{name}: number of routings");
    // Rows come layer by layer, as the fixture stores them.
    for (i, (layer, position, got, got_weights)) in decisions.routed.iter().enumerate() {
        let want: Vec<u32> = experts[i * k..(i + 1) * k].iter().map(|e| *e as u32).collect();
        assert_eq!(got, &want, "{name}: experts of layer {layer}, position {position}");
        for (a, b) in got_weights.iter().zip(&weights[i * k..(i + 1) * k]) {
            assert!(
                (a - b).abs() < 1e-4,
                "{name}: weight {a} is not {b}, layer {layer}, position {position}"
            );
        }
    }
}

fn check_selection(name: &str, expected: &Expected, engine: &Engine, decisions: &Decisions) {
    use calypte_engine::checkpoint::arch::IndexerKind;
    let arch = &engine.catalog().arch;
    let Some(dsa) = &arch.dsa else { return };
    let want = expected.i32("indexer_topk");
    let (tokens, mut full) = (expected.prompt_ids.len(), 0);
    for layer in 0..arch.layers {
        if dsa.layers[layer] == IndexerKind::Full {
            full += 1;
        }
        let of_layer = decisions.selected.iter().filter(|s| s.0 == layer);
        for (_, position, got) in of_layer {
            let start = ((full - 1) * tokens + position) * dsa.topk;
            let want: Vec<u32> =
                want[start..start + dsa.topk].iter().filter(|p| **p >= 0).map(|p| *p as u32).collect();
            let got = got.clone().unwrap_or_else(|| (0..=*position as u32).collect());
            assert_eq!(got, want, "{name}: selection of layer {layer}, position {position}");
        }
    }
    assert_eq!(full * tokens * dsa.topk, want.len(), "{name}: number of full layers");
}

fn both_formats(fixture: &str) {
    let dir = common::fixtures().join(fixture);
    check(dir.join("model.gguf"), Precision::Int8);
    check(dir, Precision::Int8);
}

#[test]
fn llama() {
    both_formats("llama-a");
    both_formats("llama-b");
}

#[test]
fn mixtral() {
    both_formats("mixtral-a");
    both_formats("mixtral-b");
}

#[test]
fn qwen3_moe() {
    both_formats("qwen3_moe-a");
    both_formats("qwen3_moe-b");
}

#[test]
fn glm_moe_dsa() {
    both_formats("glm_moe_dsa-a");
    both_formats("glm_moe_dsa-b");
}

#[test]
fn quantised_gguf_with_unrounded_activations() {
    check(common::fixtures().join("quant-mix/model.gguf"), Precision::F32);
}

#[test]
fn rounded_activations_stay_close() {
    let dir = common::fixtures().join("quant-mix");
    let expected = Expected::read(&dir);
    let mut engine = open(&dir.join("model.gguf"), Precision::Int8);
    let got = logits_of(&mut engine, &expected.prompt_ids, &mut ());
    let want = expected.f32("prompt_logits");
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| (x * x) as f64).sum::<f64>().sqrt();
    let relative = norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
    // Random weights amplify rounding far more than trained ones; a wrong block or scale would give about 1.
    assert!(relative > 1e-4 && relative < 0.15, "relative difference {relative}");
}

#[test]
fn both_formats_give_the_same_bits() {
    // Same stored values, except where GGUF stores rows of q and k in another order.
    for fixture in ["qwen3_moe-a", "glm_moe_dsa-a", "llama-a", "mixtral-b"] {
        let dir = common::fixtures().join(fixture);
        let ids = Expected::read(&dir).prompt_ids;
        let digest = |model: &Path| {
            let mut engine = open(model, Precision::Int8);
            let scoring = engine.score(&ids, &mut |_| {}, &mut |_, _| {}, &mut (), &never()).expect("scores");
            scoring.logits_sha256
        };
        let same = digest(&dir) == digest(&dir.join("model.gguf"));
        // Permuting a head's values changes the order of the sums inside its dot products, so llama's bits differ.
        assert_eq!(same, !fixture.starts_with("llama") && !fixture.starts_with("mixtral"), "{fixture}");
    }
}
