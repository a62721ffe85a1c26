//! Digests that may not move. They hold for every machine, thread count, cache and instruction set; a change of one is a
//! change of the canonical order of roundings, which is made deliberately or not at all (see ARCHITECTURE.md).

mod common;

use std::path::{Path, PathBuf};

use calypte_engine::text::Specials;
use calypte_engine::{Engine, Options, Size};
use common::{Expected, fixtures, greedy, never};

fn anna() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/anna/anna-q8_0.gguf")
}

fn open(model: &Path, cache: Size) -> Engine {
    let options = Options { expert_cache: Some(cache), context: 256, ..Options::default() };
    Engine::open(model, &options, &mut ()).unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

fn score(engine: &mut Engine, ids: &[u32]) -> (f64, String) {
    let scoring = engine.score(ids, &mut |_| {}, &mut |_, _| {}, &mut (), &never()).expect("scores");
    let hex: String = scoring.logits_sha256.iter().map(|b| format!("{b:02x}")).collect();
    (scoring.nll, hex)
}

#[test]
fn fixtures_keep_their_digests() {
    for (model, want) in [
        ("glm_moe_dsa-a/model.gguf", "dea73d4dc0624433f3437cbe284bcb0d657bac3985e56b1cb2addd273362988a"),
        ("glm_moe_dsa-b", "69a71251069fa2dc1c6184a29d358d8f9b62cf08c0e3357891b9f2918233d3b7"),
        ("qwen3_moe-a", "115c62216a781eb5f8d80a19ca7b4497fafcf0156cf08b943f7b1591bce96d7a"),
        ("mixtral-a", "17ebe6ad3fce2ddabe1c4ab37ffdfaa7131e5691de3e936e47bde2e2cb47ef42"),
        ("llama-b", "ac9e9ad46510937498c36673eb2120397323da395bc32a40ee52e697b0652435"),
        ("quant-mix/model.gguf", "e46428990df9c87561ee87c15a1bf651e789dc11fb861ae866ef6ac09e33412c"),
    ] {
        let path = fixtures().join(model);
        let dir =
            if path.is_dir() { path.clone() } else { path.parent().expect("a directory").to_path_buf() };
        let ids = Expected::read(&dir).prompt_ids;
        assert_eq!(score(&mut open(&path, Size::Min), &ids).1, want, "{model}");
    }
}

/// The opening of *Pride and Prejudice* (1813), which she was trained on.
const OPENING: &str = "It is a truth universally acknowledged, that a single man in possession of a good fortune, \
    must be in want of a wife. However little known the feelings or views of such a man may be on his first entering a \
    neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered as the \
    rightful property of some one or other of their daughters.";

#[test]
fn the_bundled_model_keeps_its_digest_and_knows_her_austen() {
    let mut engine = open(&anna(), Size::Min);
    let ids = engine.tokenizer().and_then(|t| Ok(t.encode(OPENING, Specials::Plain)?)).expect("ids");
    assert_eq!(ids.len(), 90);
    let (nll, digest) = score(&mut engine, &ids);
    // 8.3 would be guessing among 4,096 tokens.
    assert!(nll < 3.6, "{nll} nats a token");
    assert_eq!(digest, "6202bae628a0ea3b80ec4266a3e34412d3db0d71818e4d2e2ce871415bec64a2");
}

#[test]
fn the_bundled_model_says_the_same_from_disk_as_from_memory() {
    let mut texts = Vec::new();
    let mut misses = Vec::new();
    for cache in [Size::Min, Size::All] {
        let mut engine = open(&anna(), cache);
        let prompt =
            engine.tokenizer().and_then(|t| Ok(t.encode("It was a bright cold morning", Specials::Plain)?));
        let (_, outcome) = greedy(&mut engine, &prompt.expect("ids"), 100);
        texts.push(outcome.text);
        misses.push(outcome.stats.expert_misses);
    }
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].len() > 200, "{}", texts[0]);
    // With the smallest cache most experts are read again and again; with the whole one each at most once.
    assert!(misses[1] <= 5 * 16 && misses[0] > 5 * misses[1], "{misses:?}");
}

#[test]
fn the_bundled_model_exercises_the_whole_architecture() {
    use calypte_engine::checkpoint::arch::{Attention, Ffn, IndexerKind};
    let catalog = calypte_engine::checkpoint::open(&anna()).unwrap_or_else(|e| panic!("{e}"));
    let arch = &catalog.arch;
    let (moe, dsa) = (arch.moe.as_ref().expect("a mixture"), arch.dsa.as_ref().expect("sparse attention"));
    assert_eq!((arch.family, arch.mtp_layers), ("glm_moe_dsa", 1));
    assert!(matches!(arch.attention, Attention::Mla { .. }));
    assert!(moe.experts >= 16 && (2..=4).contains(&moe.top_k) && moe.shared_width.is_some());
    assert!(arch.ffn[..arch.layers].iter().filter(|f| **f == Ffn::Moe).count() >= 5);
    assert!(matches!(arch.ffn[0], Ffn::Dense { .. }));
    assert!(dsa.layers.contains(&IndexerKind::Full) && dsa.layers.contains(&IndexerKind::Shared));
    assert!(dsa.topk < 90, "the opening is longer than what attention sees");
}
