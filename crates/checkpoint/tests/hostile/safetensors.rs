//! Hugging Face directories.

use calypte_testkit::safetensors_writer::{SafetensorsWriter, with_header};

use super::tiny::{Hf, check, check_hf, check_weights, expert_name, open_case, tiny_hf};

#[test]
fn configs_that_are_no_configs() {
    let with = |text: &str| Hf { config: text.to_owned(), ..tiny_hf() };
    check_hf("empty", with(""), &["config.json", "at byte 0", "JSON"]);
    check_hf("no JSON", with("{\n\"a\": 1,\n]"), &["config.json", "at byte 10", "JSON"]);
    check_hf("a list", with("[1]"), &["config.json", "an object"]);
    check_hf("deep", with(&"[".repeat(100_000)), &["config.json"]);
    check_hf("too big a number", with(r#"{"vocab_size":1e999}"#), &["config.json", "number out of range"]);
    check_hf("nothing", with("{}"), &["model_type", "found nothing"]);
    check_hf("key twice", tiny_hf().key("vocab_size", "8"), &["key `vocab_size`", "expected once"]);
    let unknown = tiny_hf().config("\"mixtral\"", "\"bert\"");
    check_hf(
        "unknown",
        unknown,
        &["`bert (MixtralForCausalLM)`", "supported are", "glm_moe_dsa", "Qwen3MoeForCausalLM"],
    );
    let classifier = tiny_hf().config("ForCausalLM", "ForSequenceClassification");
    check_hf("another head", classifier, &["mixtral (MixtralForSequenceClassification)", "supported are"]);
    for (key, now) in
        [("vocab_size", "8"), ("hidden_size", "32"), ("num_hidden_layers", "1"), ("num_local_experts", "2")]
    {
        for bad in ["0", "-1", "1.5", "\"8\"", "18446744073709551615", "1e300", "[]", "true"] {
            let hf = tiny_hf().config(&format!("\"{key}\":{now}"), &format!("\"{key}\":{bad}"));
            check_hf("wrong number", hf, &["config.json", key, "a whole number between 1 and"]);
        }
    }
    check_hf("theta", tiny_hf().config("10000.0", "\"big\""), &["rope_theta", "a finite number"]);
    check_hf("eos", tiny_hf().config(":7}", ":8}"), &["token id", "below the vocabulary size, 8"]);
    check_hf("eos text", tiny_hf().config(":7}", ":\"</s>\"}"), &["eos_token_id", "a token id or a list"]);
    check_hf(
        "heads",
        tiny_hf().config("\"num_attention_heads\":2", "\"num_attention_heads\":3"),
        &["num_attention_heads", "divisor"],
    );
    let generation = tiny_hf().file("generation_config.json", "{\"eos_token_id\":[99]}");
    check_hf("generation config", generation, &["token id", "found 99"]);
}

#[test]
fn configs_that_are_not_supported() {
    for (key, value, says) in [
        ("rope_scaling", r#"{"type":"longrope","factor":2.0}"#, "rope_type default, linear, llama3 or yarn"),
        ("rope_parameters", "7", "an object"),
        ("partial_rotary_factor", "1.5", "found 1.5"),
        ("hidden_act", "\"relu\"", "relu"),
        ("sliding_window", "-16", "found -16"),
    ] {
        check_hf(key, tiny_hf().key(key, value), &["config.json", key, says]);
    }
    let packed = tiny_hf().key("quantization_config", r#"{"quant_method":"gptq"}"#);
    check_hf("packed", packed, &["config.json", "quant_method", "gptq", "a GGUF file of the model"]);
}

#[test]
fn safetensors_headers_that_are_no_headers() {
    let whole = tiny_hf().weights.build();
    let header = |text: &str| with_header(text, &[0; 64]);
    check_weights("empty", vec![], &["at byte 0", "8 bytes of header length", "a file of 0 bytes"]);
    check_weights(
        "37 bytes",
        whole[..37].to_vec(),
        &["a header of at most 29 bytes", "the file has 37 bytes"],
    );
    check_weights(
        "header length",
        [u64::MAX.to_le_bytes().to_vec(), vec![b'{'; 64]].concat(),
        &["18446744073709551615"],
    );
    check_weights("no JSON", header("{not json}"), &["at byte 9", "JSON"]);
    check_weights("a list", header("[]"), &["an object"]);
    check_weights(
        "not UTF-8",
        with_header("{\"a\":0}", &[]).into_iter().map(|b| if b == b'a' { 0xff } else { b }).collect(),
        &["JSON"],
    );
    check_weights("no data", whole[..whole.len() - 8192].to_vec(), &["experts.1.w", "truncated"]);
    let entry = |body: &str| header(&format!("{{\"x\":{body}}}"));
    check_weights("no fields", entry("{}"), &["dtype, shape and data_offsets", "`x`"]);
    check_weights("no shape", entry(r#"{"dtype":"F32","data_offsets":[0,4]}"#), &["`x`", "only some"]);
    check_weights("field twice", entry(r#"{"dtype":"F32","dtype":"F16"}"#), &["`dtype` twice"]);
    check_weights("negative", entry(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#), &["`x`", "-1"]);
    check_weights(
        "fraction",
        entry(r#"{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#),
        &["`x`", "1.5"],
    );
    let typed = |dtype: &str, shape: &str, end: u64| {
        entry(&format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}"#))
    };
    for (dtype, end) in [("F4", 1), ("F8_E5M2", 2), ("I64", 16), ("BOOL", 2), ("nonsense", 7)] {
        check_weights(
            "type",
            typed(dtype, "[2]", end),
            &["`x`", "one of F32, F16, BF16", dtype, "BF16 checkpoint"],
        );
    }
    check_weights("half a byte", typed("F4", "[3]", 2), &["`x`", "whole bytes (F4)"]);
    check_weights("wrong size", typed("F8_E4M3", "[2]", 4), &["`x`", "span 2 bytes (F8_E4M3 [2])"]);
    check_weights("pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), &["git lfs pull"]);
    for (shape, offsets) in [
        ("[18446744073709551615,2]", "[0,4]"),
        ("[0]", "[0,0]"),
        ("[2]", "[0,4]"),
        ("[1]", "[4,0]"),
        ("[1]", "[18446744073709551612,18446744073709551615]"),
        ("[4294967296,4294967296,4]", "[0,0]"),
    ] {
        let body = format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#);
        check_weights("range", entry(&body), &["`x`"]);
    }
    let far =
        entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]}"#);
    check_weights("range past everything", far, &["`x`", "inside the file"]);
}

#[test]
fn safetensors_that_do_not_fit_together() {
    let embed = "model.embed_tokens.weight";
    let norm = "model.norm.weight";
    let change = |f: fn(SafetensorsWriter) -> SafetensorsWriter| tiny_hf().weights(f);
    check_hf("overlap", change(|w| w.offsets("model.norm.weight", [0, 128])), &["disjoint", embed, norm]);
    check_hf("twice", change(|w| w.zeros("model.norm.weight", &[32])), &[norm, "expected once"]);
    check_hf(
        "no embedding",
        change(|w| w.without("model.embed_tokens.weight")),
        &[embed, "[8, 32]", "no such tensor"],
    );
    check_hf(
        "no expert",
        change(|w| w.without(&expert_name(1, "w3"))),
        &[&expert_name(1, "w3"), "expert 1 of 2"],
    );
    check_hf(
        "one expert more",
        change(|w| w.zeros(&expert_name(2, "w1"), &[32, 32])),
        &[&expert_name(2, "w1"), "once each"],
    );
    let other_type = change(|w| {
        w.without(&expert_name(1, "w1")).tensor(&expert_name(1, "w1"), "BF16", &[32, 32], vec![0; 2048])
    });
    check_hf("mixed experts", other_type, &[&expert_name(1, "w1"), "expected F32", "found BF16"]);
    check_hf(
        "a bias",
        change(|w| w.zeros("model.layers.0.self_attn.q_proj.bias", &[32])),
        &["unexpected tensors", "q_proj.bias"],
    );
    check_hf(
        "a stranger",
        change(|w| w.zeros("vision.patch.weight", &[32])),
        &["unexpected tensors", "vision.patch.weight"],
    );
    check_hf(
        "huge layer",
        change(|w| w.zeros("model.layers.99999999999999999999.x", &[1])),
        &["unexpected tensors"],
    );
    check_hf(
        "no head",
        tiny_hf().key("tie_word_embeddings", "false"),
        &["lm_head.weight", "tie_word_embeddings is false"],
    );
    let deeper = tiny_hf().config("\"num_hidden_layers\":1", "\"num_hidden_layers\":3");
    check_hf(
        "layers",
        deeper,
        &["model.layers.1.input_layernorm.weight", "by the config 3", "in the weights 1 layers"],
    );
    let spelled_twice = change(|w| w.zeros("model.layers.0.mlp.gate.weight", &[2, 32]));
    check_hf("one router, two names", spelled_twice, &["another spelling", "gate.weight"]);
}

#[test]
fn buffers_and_a_second_tied_head_are_set_aside() {
    let hf = tiny_hf().key("tie_word_embeddings", "true").weights(|w| {
        w.zeros("lm_head.weight", &[8, 32]).zeros("model.layers.0.self_attn.rotary_emb.inv_freq", &[8])
    });
    let (c, _dir) = open_case(&hf.case());
    let c = c.unwrap();
    let names: Vec<&str> = c.unclaimed.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]);
    assert!(c.arch.tied_embeddings);
}

#[test]
fn stacked_experts_are_cut_where_single_ones_are() {
    let single = open_case(&tiny_hf().case()).0.unwrap();
    let stacked = tiny_hf().weights(|mut w| {
        for (expert, part) in [0, 1].into_iter().flat_map(|e| ["w1", "w2", "w3"].map(|p| (e, p))) {
            w = w.without(&expert_name(expert, part));
        }
        w.zeros("model.layers.0.mlp.experts.gate_up_proj", &[2, 64, 32])
            .zeros("model.layers.0.mlp.experts.down_proj", &[2, 32, 32])
    });
    let stacked = open_case(&stacked.case()).0.unwrap();
    assert_eq!(single.parameters(), stacked.parameters());
    let layer = &stacked.experts[0];
    let start = layer.extents[0][0].offset;
    let offsets: Vec<Vec<u64>> =
        layer.extents.iter().map(|e| e.iter().map(|x| x.offset - start).collect()).collect();
    // Gate and up of an expert lie side by side; all downs follow.
    assert_eq!(offsets, [[0, 4096, 16384], [8192, 12288, 20480]]);
    assert!(layer.extents.iter().flatten().all(|e| e.len == 4096));
}

#[test]
fn stacked_int4_experts_are_refused() {
    let config = r#"{"quant_method":"compressed-tensors","format":"pack-quantized",
        "config_groups":{"a":{"weights":{"num_bits":4,"group_size":32}}}}"#;
    for (name, rows) in [("gate_up_proj", 64), ("down_proj", 32)] {
        let name = format!("model.layers.0.mlp.experts.{name}");
        let hf = tiny_hf().key("quantization_config", config).weights(|w| {
            let w = w.tensor(&format!("{name}_packed"), "I32", &[2, rows, 4], vec![0; rows as usize * 32]);
            w.tensor(&format!("{name}_scale"), "BF16", &[2, rows, 1], vec![0; rows as usize * 4])
        });
        check_hf(&name, hf, &[&name, "INT4 weights in one tensor for each expert"]);
    }
}

#[test]
fn shards() {
    let same = |index: String| index;
    let whole = open_case(&tiny_hf().case()).0.unwrap().parameters();
    for with_index in [true, false] {
        let (c, _dir) = open_case(&tiny_hf().sharded(same, [true; 2], with_index));
        let c = c.unwrap();
        assert_eq!((c.files.len(), c.parameters()), (2, whole));
    }
    let second = "model-00002-of-00002.safetensors";
    check(
        "missing shard",
        tiny_hf().sharded(same, [true, false], true),
        &["index.json", second, "tensors are in it", "fetch"],
    );
    check(
        "missing shard, no index",
        tiny_hf().sharded(same, [true, false], false),
        &[second, "expected 2 files", "found 1"],
    );
    check(
        "no shard",
        tiny_hf().sharded(same, [false; 2], true),
        &[
            "found 0",
            "`model-00001-of-00002.safetensors` (7 tensors are in it), `model-00002-of-00002.safetensors` (8",
        ],
    );
    let moved = |index: String| index.replacen("-00001-of", "-00002-of", 1);
    check(
        "wrong shard",
        tiny_hf().sharded(moved, [true; 2], true),
        &["index.json", "found it in shard `model-00001"],
    );
    let ghost = |index: String| {
        index.replacen(
            "\"weight_map\":{",
            "\"weight_map\":{\"ghost\":\"model-00001-of-00002.safetensors\",",
            1,
        )
    };
    check("ghost", tiny_hf().sharded(ghost, [true; 2], true), &["`ghost`", "found it nowhere"]);
    let outside = |index: String| index.replace("model-00002", "../model-00002");
    check("outside", tiny_hf().sharded(outside, [true; 2], true), &["weight_map", "in the same directory"]);
    check("no index", tiny_hf().sharded(|_| "{}".to_owned(), [true; 2], true), &["index.json", "weight_map"]);
    check(
        "empty index",
        tiny_hf().sharded(|_| "{\"weight_map\":{}}".to_owned(), [true; 2], true),
        &["at least one tensor"],
    );
    let twice =
        |index: String| index.replacen("\"weight_map\":{", "\"weight_map\":{\"model.norm.weight\":\"a\",", 1);
    check(
        "twice in the index",
        tiny_hf().sharded(twice, [true; 2], true),
        &["model.norm.weight", "expected once"],
    );
    let mut both = tiny_hf().sharded(same, [true; 2], true);
    both.files[2].1 = tiny_hf().weights.build();
    check("twice in shards", both, &["model.embed_tokens.weight", "expected once", second]);
    let mut series = tiny_hf().sharded(same, [true; 2], false);
    series.files.push(("other.safetensors".to_owned(), vec![]));
    assert!(open_case(&series).0.is_ok());
    series.files.push(("x-00001-of-00001.safetensors".to_owned(), vec![]));
    check("two series", series, &["one series", "x-00001"]);
}
