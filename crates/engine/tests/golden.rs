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
        ("deepseek_v2-a/model.gguf", "0e6de42348fb93c68913d16b8db637e6d24aad3b9ef2c498f029ca4810d094e3"),
        ("deepseek_v2-b/model.gguf", "962dfa27fa98f8a0b9b27ed9b290966fb6e2d031ffda06462861641eef92153e"),
        ("deepseek_v3-a/model.gguf", "79e0f1f31f42c3b8c7afb48c518423fe69a1641863235c2d08a9a59ce3b844a3"),
        ("deepseek_v3-fp8", "a7efc580bf36387a7ed9c491cebd28648b40dd97d9cca80f39f54ef5049bda3b"),
        ("deepseek_v3-int4", "45c54cbba8abf154a0008656e0ea0c954dfc40076829be8ff18dacbba0c12a0d"),
        ("deepseek_v32-a/model.gguf", "b2f41c712fc69a99a09c745803c0397b74dd4567765bcc6c6b71b0be206d2569"),
        ("dots1-a/model.gguf", "43fae198aa9ef17ac10f7f29052346ff6fbe72f94d562124a212de7213ae1e0f"),
        ("ernie4_5_moe-a/model.gguf", "4c5e64b597f5f451c31b137ef19f4fb8a9e016afcad4c2c1c796f8a5701bf9e3"),
        ("gemma3_text-a/model.gguf", "ed286e5bec6a9fbdb783c2f4357b172ddc2bf86cd3ff39baf5a8d53f3ef21084"),
        ("glm4_moe-a/model.gguf", "bfbb376595135c9922e95de13eccfc574b75956c672ca34c49c761b40eaef258"),
        ("glm4_moe_lite-a/model.gguf", "8d716d5b0c0463e4785476aaf261405b4c49db530109ee8bb2f1685eb146a456"),
        ("gpt_oss-a/model.gguf", "042755abfc64254c617e5530762455f39771f150964b7a7dc37ea89244f00f1e"),
        ("gpt_oss-b/model.gguf", "5bd2ed2a0f50edb1759b70bfff55f614288b71521d6480c9545c4cb3b91ef898"),
        ("granitemoe-a/model.gguf", "10ed40e9992301b0ee12fe6c71fdf6e3f934eb0002cbacafdc30aa159a65c62b"),
        ("lfm2_moe-a/model.gguf", "fd53099ee9bee33ae3d4195137ab3aa3a644cb362f18ae4966c62626d4494330"),
        ("llama-a/model.gguf", "b9d88b337ced9c64fd64bada7f26bb30f6b6d569f1768f32358c5134bf46fed3"),
        ("llama-c/model.gguf", "5d0eba12f029eb15ded4ccf180a43b9a860a6e8d5c63e5e01d8c36ba6da6a192"),
        ("minimax_m2-a/model.gguf", "efd15244b317ffc734326b9b4a17913dd841b974ae85fb9a6e0468a098551d05"),
        ("mixtral-c/model.gguf", "8b2689a00e783612fb4406972a298ec9011cca7659c8ad59e9027b30e6b25b8c"),
        ("olmoe-a/model.gguf", "4a1bd569dd8649fec7abe2fbdca5a8f0a0b2ec1bc59e212f8e463fa606185f5e"),
        ("qwen2-a/model.gguf", "a2e173aecc3dbbe595a82fdde3ae16d95b35e1c932a3aa6505576a519e3de560"),
        ("qwen2_moe-a/model.gguf", "2021f58c1feae7d263f53d86239d3b8a7c7a9166e49ecf0b0e7fb106f7b0e728"),
        ("qwen3-a/model.gguf", "ab398607711306d8c1c522d64528a12d1fcb0656676f50ce9456cec251c71ffa"),
        ("qwen3_moe-fp8", "0ce4ec1e4b3d975766a7b0b28cfcf49057bfc92c9eaf966de75d040a646c1206"),
        ("qwen3_moe-fp8t", "4b7877d9e3e4849ea08aaf1a077b50851b4a5d99e4903e9f2040ef475eac5717"),
        ("qwen3_moe-mxfp4", "fad6d13582810e95c27af14630688e0e3ad06ff1a78dfd9fcb511606ee8a592c"),
        ("smollm3-a/model.gguf", "40c71895dd960bb8eda1b998bc5fcb89d617041e1292d21eed590d155064c761"),
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
