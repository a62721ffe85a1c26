//! The engine against the reference implementation: every family, from both file formats.
//!
//! `fixtures/` holds tiny random checkpoints with what transformers 5.24 computes for them in f32 (see
//! `tools/oracle/README.md`): prompt logits, greedy ids, router choices and indexer selections.

mod common;

use std::path::{Path, PathBuf};

use calypte_engine::checkpoint::arch::RopeScaling;
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

/// The reference does not round activations: where weights are integers, neither may the engine.
fn precision(model: &Path) -> Precision {
    let catalog = calypte_engine::checkpoint::open(model).unwrap_or_else(|e| panic!("{e}"));
    if catalog.has_integer_weights() { Precision::F32 } else { Precision::Int8 }
}

/// Every fixture of a family (`NAME-a`, `NAME-b`, …), in every format that it is stored in.
#[track_caller]
fn family(name: &str) {
    let entries = std::fs::read_dir(common::fixtures()).expect("fixtures");
    let names = entries.map(|e| e.expect("an entry").file_name().into_string().expect("a name"));
    let mut fixtures: Vec<String> =
        names.filter(|n| n.rsplit_once('-').is_some_and(|(family, _)| family == name)).collect();
    fixtures.sort();
    assert!(fixtures.len() >= 2, "{name}: two shapes are proven at least, not only {fixtures:?}");
    for fixture in fixtures {
        let dir = common::fixtures().join(fixture);
        let gguf = dir.join("model.gguf");
        if gguf.exists() {
            check(gguf.clone(), precision(&gguf));
        }
        if dir.join("config.json").exists() {
            check(dir.clone(), precision(&dir));
        }
    }
}

macro_rules! families {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                family(stringify!($name));
            }
        )*

        #[test]
        fn every_family_is_proven_here() {
            let proven = [$(stringify!($name)),*];
            for family in calypte_engine::checkpoint::supported_families() {
                assert!(proven.contains(&family.model_type), "{} has no test", family.model_type);
            }
        }
    };
}

families! {
    llama
    qwen2
    qwen3
    smollm3
    gemma3_text
    mixtral
    olmoe
    qwen2_moe
    qwen3_moe
    granitemoe
    gpt_oss
    glm4_moe
    glm4_moe_lite
    deepseek_v2
    deepseek_v3
    deepseek_v32
    glm_moe_dsa
    minimax_m2
    ernie4_5_moe
    lfm2_moe
    dots1
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

/// Same stored values give the same bits, except where a format stores them in another order or stores what the other
/// leaves to be computed.
#[test]
fn both_formats_give_the_same_bits() {
    for dir in common::checkpoints() {
        let gguf = dir.join("model.gguf");
        if !gguf.exists() || !dir.join("config.json").exists() {
            continue;
        }
        let ids = Expected::read(&dir).prompt_ids;
        let digest = |model: &Path| {
            let mut engine = open(model, Precision::Int8);
            let scoring = engine.score(&ids, &mut |_| {}, &mut |_, _| {}, &mut (), &never()).expect("scores");
            (scoring.logits_sha256, engine.catalog().arch.ropes[0].clone())
        };
        let ((a, rope_a), (b, rope_b)) = (digest(&dir), digest(&gguf));
        // Permuting a head's values changes the order of the sums inside its dot products.
        let alike = rope_a.layout == rope_b.layout && rope_b.scaling != RopeScaling::Stored;
        assert_eq!(a == b, alike, "{}", dir.display());
    }
}
