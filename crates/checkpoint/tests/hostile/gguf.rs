//! GGUF files.

use calypte_testkit::gguf_writer::GgufValue;

use super::tiny::{Case, ROUTER, UP, check_bytes, check_gguf, open_case, tiny_gguf};

#[test]
fn gguf_headers_that_are_no_headers() {
    let whole = tiny_gguf().build();
    let cut = |n: usize| whole[..n].to_vec();
    let header_len = tiny_gguf().header().len();
    check_bytes("empty", vec![], &["at byte 0", "4 more bytes", "found 0 before the end"]);
    check_bytes("37 bytes", cut(37), &["at byte 16", "12 tensors", "found 21 before the end of the file"]);
    check_bytes("37 other bytes", vec![7; 37], &["the magic `GGUF`", "[07, 07, 07, 07]"]);
    check_bytes("half a header", cut(header_len / 2), &["before the end of the file", "fetch it again"]);
    check_bytes("no data", cut(header_len), &["token_embd.weight", "1024 bytes", "truncated"]);
    check_bytes(
        "last byte missing",
        cut(whole.len() - 1),
        &["ffn_down_exps.weight", "8192 bytes", "8191 before"],
    );
    check_bytes("pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), &["git lfs pull"]);
    check_gguf("version 1", tiny_gguf().version(1), &["version 2 or 3", "version 1"]);
    check_gguf("big endian", tiny_gguf().version(3u32.swap_bytes()), &["a big-endian file"]);
    check_gguf(
        "absurd tensor count",
        tiny_gguf().counts(Some(u64::MAX), None),
        &["at byte 8", "tensors", "18446744073709551615"],
    );
    check_gguf("absurd key count", tiny_gguf().counts(None, Some(1 << 40)), &["at byte 16", "metadata keys"]);
    check_gguf("one key too many", tiny_gguf().counts(None, Some(13)), &["at byte 534", "a tensor name"]);
}

#[test]
fn gguf_values_that_are_no_values() {
    let with = |kind: u32, bytes: &[u8]| tiny_gguf().key("odd", GgufValue::Raw(kind, bytes.to_vec()));
    let array = |kind: u32, n: u64| [&kind.to_le_bytes()[..], &n.to_le_bytes()].concat();
    check_gguf("unknown type", with(99, &[]), &["value type between 0 and 12", "`odd`", "type 99"]);
    check_gguf("unknown item type", with(9, &array(13, 1)), &["value type between 0 and 12", "type 13"]);
    check_gguf("truth value 2", with(7, &[2]), &["a truth value, 0 or 1", "found 2"]);
    check_gguf(
        "long string",
        with(8, &u64::MAX.to_le_bytes()),
        &["a string of at most", "18446744073709551615"],
    );
    check_gguf("bad string", with(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), &["in UTF-8"]);
    check_gguf("long array", with(9, &array(8, 1 << 60)), &["array items", "1152921504606846976"]);
    check_gguf("long array of bytes", with(9, &array(0, u64::MAX)), &["array items"]);
    let nested: Vec<u8> = (0..9).flat_map(|_| array(9, 1)).collect();
    check_gguf("deep arrays", with(9, &nested), &["nested at most 4 deep", "`odd`"]);
    check_gguf(
        "key twice",
        tiny_gguf().key("general.name", "again"),
        &["key `general.name`", "expected once"],
    );
    for bad in [0, 3, 1 << 30] {
        let w = tiny_gguf().key("general.alignment", GgufValue::U32(bad));
        check_gguf("alignment", w, &["general.alignment", "a power of two"]);
    }
    check_gguf(
        "alignment in words",
        tiny_gguf().key("general.alignment", "32"),
        &["general.alignment", "found `32`"],
    );
    check_gguf(
        "split",
        tiny_gguf().key("split.count", GgufValue::U32(3)),
        &["key `split.no`", "up to 2", "found nothing"],
    );
    let name = "n".repeat(5000);
    check_gguf("long name", tiny_gguf().zeros(&name, &[32]), &["a tensor name of at most 1024 bytes"]);
}

#[test]
fn gguf_tensors_that_do_not_fit() {
    let replace = |name: &str, shape: &[u64], kind: u32, bytes: usize| {
        tiny_gguf().without(name).tensor(name, shape, kind, vec![0; bytes])
    };
    check_gguf("no dimensions", replace(UP, &[], 0, 4), &["1 to 4 dimensions", UP]);
    check_gguf("five dimensions", replace(UP, &[1; 5], 0, 4), &["1 to 4 dimensions", "found 5"]);
    check_gguf("dimension 0", replace(UP, &[2, 0, 32], 0, 0), &[UP, "not 0"]);
    check_gguf("huge dimensions", replace(UP, &[1 << 40, 1 << 40], 0, 0), &[UP, "product fits"]);
    check_gguf("huge rows", replace(UP, &[1 << 61], 0, 0), &[UP]);
    check_gguf(
        "beyond the end",
        replace(UP, &[1 << 20, 1 << 20], 0, 0),
        &[UP, "4398046511104 bytes", "truncated"],
    );
    for (kind, name, todo) in [
        (16, "IQ2_XXS (ggml type 16)", "for example Q4_K_M"),
        (40, "NVFP4 (ggml type 40)", "for example Q4_K_M"),
        (31, "Q4_0_4_4 (ggml type 31)", "the plain Q4_0 file"),
        (4, "Q4_2 (ggml type 4)", "a current converter"),
        (28, "F64 (ggml type 28)", "another file of the model"),
        (999, "unknown (ggml type 999)", "a current version of this program"),
    ] {
        check_gguf(name, replace(UP, &[2, 32, 256], kind, 1 << 17), &[UP, name, "one of F32", todo]);
    }
    check_gguf(
        "part of a block",
        replace(UP, &[2, 32, 48], 8, 0),
        &[UP, "whole blocks of 32", "[2, 32, 48]"],
    );
    check_gguf("odd offset", tiny_gguf().offset(UP, 33), &[UP, "a multiple of 32", "found 33"]);
    check_gguf("offset past everything", tiny_gguf().offset(UP, u64::MAX - 31), &[UP]);
    check_gguf("offset past the end", tiny_gguf().offset(UP, 1 << 40), &[UP, "truncated"]);
    check_gguf("overlap", tiny_gguf().offset(UP, 0), &["disjoint", UP, "token_embd.weight"]);
    check_gguf(
        "tensor twice",
        tiny_gguf().zeros(UP, &[2, 32, 32]),
        &[UP, "expected once", "in the same file"],
    );
}

#[test]
fn gguf_metadata_that_is_no_model() {
    let set = |key: &str, value: GgufValue| tiny_gguf().set(&format!("llama.{key}"), value);
    let n = GgufValue::U32;
    check_gguf(
        "unknown architecture",
        tiny_gguf().set("general.architecture", "mamba"),
        &["`mamba`", "supported are", "llama (", "mixtral (", "qwen3_moe (", "glm_moe_dsa (", "glm-dsa"],
    );
    check_gguf(
        "no architecture",
        tiny_gguf().without_key("general.architecture"),
        &["general.architecture", "nothing"],
    );
    check_gguf(
        "architecture 7",
        tiny_gguf().set("general.architecture", n(7)),
        &["general.architecture", "a string"],
    );
    for key in ["embedding_length", "block_count", "attention.head_count", "expert_used_count"] {
        let full = format!("llama.{key}");
        check_gguf("missing key", tiny_gguf().without_key(&full), &[&full, "found nothing"]);
        check_gguf("zero", set(key, n(0)), &[&full, "between 1 and", "found 0"]);
        check_gguf("huge", set(key, GgufValue::U64(u64::MAX)), &[&full, "18446744073709551615"]);
        check_gguf("negative", set(key, GgufValue::I32(-4)), &[&full, "found -4"]);
        check_gguf("text", set(key, "four".into()), &[&full, "found `four`"]);
    }
    check_gguf(
        "heads do not divide",
        set("attention.head_count", n(3)),
        &["head_count", "divisor of embedding_length 32"],
    );
    check_gguf(
        "kv heads",
        set("attention.head_count_kv", n(3)),
        &["key/value heads", "divisor of the 2", "found 3"],
    );
    check_gguf(
        "too many chosen",
        set("expert_used_count", n(3)),
        &["experts per token", "the 2 experts", "found 3"],
    );
    check_gguf("odd rope", set("rope.dimension_count", n(3)), &["rotated values", "even"]);
    check_gguf("wide rope", set("rope.dimension_count", n(64)), &["rotated values", "the head's 16"]);
    check_gguf(
        "theta",
        set("rope.freq_base", GgufValue::F32(f32::NAN)),
        &["rope.freq_base", "a finite number"],
    );
    check_gguf("theta 0", set("rope.freq_base", GgufValue::F32(0.0)), &["rope theta", "positive"]);
    check_gguf(
        "eps",
        set("attention.layer_norm_rms_epsilon", GgufValue::F32(2.0)),
        &["norm epsilon", "found 2"],
    );
    check_gguf(
        "another stretch",
        set("rope.scaling.type", "longrope".into()),
        &["rope.scaling.type", "`longrope`", "not supported"],
    );
    check_gguf("vocabulary", set("vocab_size", n(9)), &["token_embd.weight", "[9, 32]", "[8, 32]"]);
}

#[test]
fn gguf_tokenizers_that_do_not_fit() {
    let tokens = |n: usize| GgufValue::Texts((0..n).map(|i| format!("t{i}")).collect());
    let base = || tiny_gguf().key("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.tokens", tokens(8));
    let floats = |n: u64| {
        let items = (0..n).flat_map(|_| 0f32.to_le_bytes());
        GgufValue::Raw(
            9,
            [&6u32.to_le_bytes()[..], &n.to_le_bytes()].concat().into_iter().chain(items).collect(),
        )
    };
    let (sound, _dir) = open_case(&Case {
        files: vec![("m.gguf".to_owned(), base().key("tokenizer.ggml.scores", floats(8)).build())],
        target: "m.gguf",
    });
    assert!(sound.is_ok());
    check_gguf(
        "scores",
        base().key("tokenizer.ggml.scores", floats(7)),
        &["tokenizer.ggml.scores", "an array of 8"],
    );
    check_gguf("types", base().key("tokenizer.ggml.token_type", floats(8)), &["tokenizer.ggml.token_type"]);
    check_gguf(
        "merges",
        base().key("tokenizer.ggml.merges", "a b"),
        &["tokenizer.ggml.merges", "array of strings"],
    );
    check_gguf(
        "too many",
        base().set("tokenizer.ggml.tokens", tokens(9)),
        &["tokenizer.ggml.tokens", "at most 8"],
    );
    let eos = base().key("tokenizer.ggml.eos_token_id", GgufValue::U32(8));
    check_gguf("end token", eos, &["token id", "below the vocabulary size, 8"]);
    let bos = base().key("tokenizer.ggml.bos_token_id", "x");
    check_gguf("begin token", bos, &["tokenizer.ggml.bos_token_id", "a token id"]);
}

#[test]
fn gguf_config_and_weights_disagree() {
    let q8 = |name: &str, shape: &[u64], bytes: usize| {
        tiny_gguf().without(name).tensor(name, shape, 8, vec![0; bytes])
    };
    let census = ["config and weights disagree", "by the config 1", "in the weights 1 layers"];
    let all = |says: &[&'static str]| [&census[..], says].concat();
    check_gguf("quantised router", q8(ROUTER, &[2, 32], 68), &all(&[ROUTER, "F32, F16, BF16", "found Q8_0"]));
    check_gguf(
        "missing norm",
        tiny_gguf().without("blk.0.ffn_norm.weight"),
        &all(&["blk.0.ffn_norm.weight", "[32]", "no such"]),
    );
    check_gguf("missing experts", tiny_gguf().without(UP), &all(&["blk.0.ffn_up.0.weight", "expert 0 of 2"]));
    let wide = tiny_gguf().without(UP).zeros(UP, &[2, 64, 32]);
    check_gguf("wide experts", wide, &all(&[UP, "[2, 32, 32]", "[2, 64, 32]"]));
    let few = tiny_gguf().set("llama.expert_count", GgufValue::U32(4));
    check_gguf("fewer experts", few, &["[4, 32]", "with 4 experts", "up to 2 experts"]);
    let deep = tiny_gguf().set("llama.block_count", GgufValue::U32(2));
    check_gguf(
        "fewer layers",
        deep,
        &["blk.1.", "no such tensor", "by the config 2", "in the weights 1 layers"],
    );
    let extra = tiny_gguf().zeros("blk.1.attn_norm.weight", &[32]).zeros("blk.0.attn_q.extra", &[32]);
    check_gguf(
        "more than asked",
        extra,
        &["unexpected tensors", "`blk.0.attn_q.extra`", "`blk.1.attn_norm.weight`"],
    );
    let dense = tiny_gguf().without_key("llama.expert_count").without_key("llama.expert_used_count");
    check_gguf("a mixture that says it is dense", dense, &["blk.0.ffn_gate.weight", "no such tensor"]);
    let mut both = tiny_gguf();
    for expert in 0..2 {
        both = both.zeros(&format!("blk.0.ffn_up.{expert}.weight"), &[32, 32]);
    }
    check_gguf("stacked and single", both, &["blk.0.ffn_up.0.weight", "once each"]);
    let many = (0..20).fold(tiny_gguf(), |w, i| w.zeros(&format!("blk.0.odd.{i}"), &[1]));
    check_gguf("many unexpected", many, &["and 12 more"]);
}
