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
    let mut moved = String::new();
    for (model, want) in [
        ("glm_moe_dsa-a/model.gguf", "14039e67bea0aa57834118c5000b057a94a52f0b46e1804deee0761db12ba3f1"),
        ("glm_moe_dsa-b", "98ec99c16c40212f2e68701359c69a40777e0a8d78fde84aa8046a8bd04766e3"),
        ("qwen3_moe-a", "de2a1df78afe5e62c70f13a30c142b713498022c9de1eff40e5e8275f6c36e0b"),
        ("mixtral-a", "f1940089ba2d1b39ca8b2d9fb507b4918f502c7d3662c6910b54938d8cf21a47"),
        ("llama-b", "0e9a816bce36e119f485ef65555b1769853e4805925f6532fbf15cd028c7518d"),
        ("quant-mix/model.gguf", "a7bc9a4bd260b25b193f61e81e40ed0d6fe52d372562115c275433236b89d9a8"),
        ("deepseek_v2-a/model.gguf", "c34b29305b23069722df39687c640cea2d4ee4215e41c21179c029025142b320"),
        ("deepseek_v2-b/model.gguf", "9b9b39cbbf8e10e8bcfc139e9f963743a1cbfd09eb44aa6192da20bab76d2d58"),
        ("deepseek_v3-a/model.gguf", "ae5c7d7f2c7f6fcbf6a52680fec94949548f56fb1a1c0b616f56babafea6f338"),
        ("deepseek_v3-fp8", "22228ac747e1b1a32d66c8048f251532f03532718d20ad71c377c7a1f290be94"),
        ("deepseek_v3-int4", "05b8b80ae629ca317cf5223c74ec1cc03d1f9df90a1a336c5f9a33c51a417bb8"),
        ("deepseek_v32-a/model.gguf", "9fd29e3b83ef059da94d7bf7d42abd25f7f2501615228e5393f63d387d2274a7"),
        ("dots1-a/model.gguf", "b778b2e5aa9f82c63d433983b54b10687dd63d81017907360f4c47fd6c2746c1"),
        ("ernie4_5_moe-a/model.gguf", "8b9a6b93166539d7b2a1b745cb35a44db43d4e034230cb328c42473b29548114"),
        ("gemma3_text-a/model.gguf", "ef5e6a5fb11f730af58929185245bee9781db6b674ee367a40140695e0775170"),
        ("glm4_moe-a/model.gguf", "8b5b04087410427bb0e338de520ee412a3dc859c343b5033ce05f8ea54c9f1d6"),
        ("glm4_moe_lite-a/model.gguf", "4a2b8c551cef2b26d8d434e1c740339a7b7aaccc82bc306e272e9e6c71112c8c"),
        ("gpt_oss-a/model.gguf", "2035ef34ac7a897a6f290a2028cbc15d8dc6fe69171806c0d0adc3f265520484"),
        ("gpt_oss-b/model.gguf", "8176f076ad635dd8a32f4c3936d73b71123faa7f5fada77039bb6a252e5787de"),
        ("granitemoe-a/model.gguf", "822f8719d420b88aa95f3ac6300af65bbc7ff7c068ecf189336de3153c378f56"),
        ("lfm2_moe-a/model.gguf", "3be3f207db78c9574a9a2081153a7ff478e9870d7d4ca5ef4abf6a0d788148ea"),
        ("llama-a/model.gguf", "8158aa087dc1c56d18480bca0ae0d06c02a1ad5bb4422d1aa9f76eb7146dab17"),
        ("llama-c/model.gguf", "609338c89284346892f564cb647742ee7fda3bc37b11bd4ed8647fd9d47abdf1"),
        ("minimax_m2-a/model.gguf", "2f1024abcf80de271c1b0c88a2a1b918f58f2fa15774847adc7f0b89a922332b"),
        ("mixtral-c/model.gguf", "31b4f090185dba8e6fd6eb3bdddf18e7578213774090dea1fa99c8d53f3129ea"),
        ("olmoe-a/model.gguf", "9ad386db07072b27f1886d9be60c73e28453eea935373a2e62117b78b1d665b6"),
        ("qwen2-a/model.gguf", "2b217842c1620559aaf147f378279be86932cd925510df007caec070178bccd6"),
        ("qwen2_moe-a/model.gguf", "7f5e80ce792a771edb6bbdb7d8770b42221eba6707bda44f6228a2bdeee9c0bf"),
        ("qwen3-a/model.gguf", "c1a445521c2cbb1d24e8ea8998667a4b3695271f6d8871247600078ae5784494"),
        ("qwen3_moe-fp8", "3793be7760ca422f1d5e93ce5351bbc89e3ab8a72ffe44063fd0accab2e62b98"),
        ("qwen3_moe-fp8t", "2eab2dac55155dc6acccc46d09ca39ca1856a188a67a566f5d1e85a3aa50d15d"),
        ("qwen3_moe-mxfp4", "927255d4b6725bb442db99f546195dd0ae3e5894ebf666396ad4bc9ce0b7473c"),
        ("smollm3-a/model.gguf", "3a412797bcb3bce7ec4b5e0c212387927d7bd341f8a976edd6d278e483cfb7e2"),
    ] {
        let path = fixtures().join(model);
        let dir =
            if path.is_dir() { path.clone() } else { path.parent().expect("a directory").to_path_buf() };
        let ids = Expected::read(&dir).prompt_ids;
        let got = score(&mut open(&path, Size::Min), &ids).1;
        if got != want {
            moved += &format!("\n{model}: {got}, not {want}");
        }
    }
    assert_eq!(moved, "", "digests moved");
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
    assert_eq!(digest, "3f2df7c47ec02d36e35f9cb72dc725984ebf3f3e7d6812a37f8a1ca8d30ece1e");
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
        misses.push(outcome.stats.experts.misses);
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
