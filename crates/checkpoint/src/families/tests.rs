//! What `config.json` means, and how names are spelled.

use std::path::Path;

use super::names::{Meaning, Part, Stack};
use super::{FAMILIES, of_hf, supported_families};
use crate::arch::{Arch, Attention, Ffn, GateNormalization, IndexerKind, RopeScaling};
use crate::catalog::{Role, TensorKey};
use crate::hf_config::HfConfig;

fn arch(config: &str) -> Result<Arch, String> {
    let config =
        HfConfig::from_bytes(Path::new("config.json"), config.as_bytes()).map_err(|e| e.to_string())?;
    of_hf(&config).and_then(|f| (f.from_hf)(&config)).map_err(|e| e.to_string())
}

/// Layers as `d`ense or `m`ixture, then indexers as `F`ull or `S`hared.
fn layers(arch: &Arch) -> String {
    let ffn = arch.ffn.iter().map(|f| if *f == Ffn::Moe { 'm' } else { 'd' });
    let dsa =
        arch.dsa.iter().flat_map(|d| &d.layers).map(|k| if *k == IndexerKind::Full { 'F' } else { 'S' });
    ffn.chain([' ']).chain(dsa).collect()
}

#[test]
fn layers_of_a_configuration() {
    let check = |family: &str, keys: &str, expected: &str| {
        let config = format!(r#"{{"model_type":"{family}","num_hidden_layers":6{keys}}}"#);
        match arch(&config) {
            Ok(a) => assert_eq!(layers(&a), expected, "{config}"),
            Err(e) => assert!(e.contains(expected), "{config}: {e}"),
        }
    };
    check("llama", "", "dddddd ");
    check("mixtral", "", "mmmmmm ");
    check("qwen3_moe", "", "mmmmmm ");
    check("qwen3_moe", r#","decoder_sparse_step":2"#, "dmdmdm ");
    check("qwen3_moe", r#","mlp_only_layers":[0,4]"#, "dmmmdm ");
    check("qwen3_moe", r#","decoder_sparse_step":3,"mlp_only_layers":[5]"#, "ddmddd ");
    check("qwen3_moe", r#","mlp_only_layers":null"#, "mmmmmm ");
    check("qwen3_moe", r#","decoder_sparse_step":0"#, "`decoder_sparse_step`");
    check("qwen3_moe", r#","mlp_only_layers":["0"]"#, "`mlp_only_layers`");
    check("glm_moe_dsa", "", "dddmmm FFFFFF");
    check("glm_moe_dsa", r#","first_k_dense_replace":1,"num_nextn_predict_layers":1"#, "dmmmmmm FFFFFFF");
    check("glm_moe_dsa", r#","first_k_dense_replace":99"#, "dddddd FFFFFF");
    check("glm_moe_dsa", r#","index_topk_freq":4,"index_skip_topk_offset":3"#, "dddmmm FFFSSS");
    check("glm_moe_dsa", r#","index_topk_freq":2,"index_skip_topk_offset":1"#, "dddmmm FSFSFS");
    check("glm_moe_dsa", r#","index_topk_freq":2"#, "dddmmm FFSFSF");
    check("glm_moe_dsa", r#","index_topk_freq":0"#, "dddmmm FFFFFF");
    check("glm_moe_dsa", r#","index_topk_pattern":"FSSFSS","index_topk_freq":2"#, "dddmmm FSSFSS");
    check(
        "glm_moe_dsa",
        r#","index_topk_pattern":["full","shared","full","full","full","full"]"#,
        "dddmmm FSFFFF",
    );
    check("glm_moe_dsa", r#","index_topk_pattern":"FSXFFF""#, "`index_topk_pattern`");
    check("glm_moe_dsa", r#","index_topk_pattern":"SFFFFF""#, "the first one `full`");
    check("glm_moe_dsa", r#","indexer_types":["full"]"#, "`indexer_types`");
    let types = r#","indexer_types":["full","full","shared","shared","shared","shared"],"index_topk_pattern":"FFFFFF""#;
    check("glm_moe_dsa", types, "dddmmm FFSSSS");
    let mlp = r#","mlp_layer_types":["sparse","dense","sparse","dense","sparse","dense"]"#;
    check("glm_moe_dsa", mlp, "mdmdmd FFFFFF");
    check("glm_moe_dsa", r#","mlp_layer_types":["sparse"]"#, "`mlp_layer_types`");
    for (key, bad) in [
        ("moe_layer_freq", "2"),
        ("scoring_func", "\"softmax\""),
        ("topk_method", "\"greedy\""),
        ("rope_interleave", "false"),
        ("indexer_rope_interleave", "false"),
    ] {
        check("glm_moe_dsa", &format!(r#","{key}":{bad}"#), &format!("key `{key}`: expected"));
    }
}

#[test]
fn numbers_that_a_configuration_leaves_out() {
    let gqa = |config: &str| match arch(config).unwrap().attention {
        Attention::Gqa(a) => (a.heads, a.kv_heads, a.head_dim),
        Attention::Mla(_) => panic!("latent attention"),
    };
    let check = |config: &str, expected: (usize, usize, usize)| assert_eq!(gqa(config), expected, "{config}");
    check(r#"{"model_type":"llama"}"#, (32, 32, 128));
    check(r#"{"model_type":"llama","num_attention_heads":16}"#, (16, 16, 256));
    check(r#"{"model_type":"mixtral"}"#, (32, 8, 128));
    check(r#"{"model_type":"mixtral","num_key_value_heads":null,"head_dim":null}"#, (32, 32, 128));
    check(r#"{"model_type":"qwen3_moe"}"#, (32, 4, 64));
    check(r#"{"architectures":["Qwen3MoeForCausalLM"],"head_dim":128}"#, (32, 4, 128));

    let theta = |keys: &str| arch(&format!(r#"{{"model_type":"mixtral"{keys}}}"#)).unwrap().ropes[0].theta;
    assert_eq!(theta(""), 1e6);
    assert_eq!(theta(r#","rope_theta":5e5"#), 5e5);
    assert_eq!(theta(r#","rope_theta":5e5,"rope_parameters":{"rope_type":"default","rope_theta":7}"#), 7.0);
    assert_eq!(theta(r#","rope_theta":5e5,"rope_scaling":null"#), 5e5);
    assert_eq!(theta(r#","rope_theta":5e5,"rope_scaling":{"type":"default"}"#), 5e5);

    let glm = arch(r#"{"model_type":"glm_moe_dsa"}"#).unwrap();
    let moe = glm.moe.unwrap();
    assert_eq!((glm.hidden, glm.layers, moe.experts, moe.top_k, moe.width), (6144, 78, 256, 8, 2048));
    assert_eq!((moe.shared_width, moe.gate.scale), (Some(2048), 2.5));
    assert_eq!(moe.gate.normalization, GateNormalization::Sum { eps: 1e-20 });
    let no_shared = arch(r#"{"model_type":"glm_moe_dsa","n_shared_experts":0}"#).unwrap();
    assert_eq!(no_shared.moe.unwrap().shared_width, None);
    let two_shared = arch(r#"{"model_type":"glm_moe_dsa","n_shared_experts":2}"#).unwrap();
    assert_eq!(two_shared.moe.unwrap().shared_width, Some(4096));
    let qwen = arch(r#"{"model_type":"qwen3_moe"}"#).unwrap().moe.unwrap();
    assert_eq!(qwen.gate.normalization, GateNormalization::None);
}

/// Per layer: its window (`-` for none) and which rotary embedding (`x` for none).
fn views(arch: &Arch) -> String {
    let window = |w: Option<usize>| w.map_or("-".to_owned(), |w| w.to_string());
    let rope = |r: Option<usize>| r.map_or("x".to_owned(), |r| r.to_string());
    let each = arch.views.iter().map(|v| format!("{}/{}", window(v.window), rope(v.rope)));
    each.collect::<Vec<_>>().join(" ")
}

#[test]
fn windows_and_positions_of_a_configuration() {
    let check = |family: &str, keys: &str, expected: &str| {
        let config = format!(r#"{{"model_type":"{family}","num_hidden_layers":4{keys}}}"#);
        match arch(&config) {
            Ok(a) => assert_eq!(views(&a), expected, "{config}"),
            Err(e) => assert!(e.contains(expected), "{config}: {e}"),
        }
    };
    check("llama", "", "-/0 -/0 -/0 -/0");
    check("mixtral", r#","sliding_window":9"#, "9/0 9/0 9/0 9/0");
    check("qwen2", r#","sliding_window":9,"max_window_layers":2"#, "-/0 -/0 -/0 -/0");
    let on = r#","use_sliding_window":true,"sliding_window":9,"max_window_layers":2"#;
    check("qwen2", on, "-/0 -/0 9/0 9/0");
    check("qwen2_moe", on, "9/0 -/0 -/0 -/0");
    let types = r#","use_sliding_window":true,"sliding_window":9,"layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"]"#;
    check("qwen3", types, "9/0 -/0 -/0 9/0");
    check("qwen3", r#","use_sliding_window":true,"layer_types":["full_attention"]"#, "`layer_types`");
    check("smollm3", "", "-/0 -/0 -/0 -/x");
    check("smollm3", r#","no_rope_layers":[0,1,1,0]"#, "-/x -/0 -/0 -/x");
    check("smollm3", r#","no_rope_layers":[0,1]"#, "`no_rope_layers`");
    check("gpt_oss", "", "128/0 -/0 128/0 -/0");
    check("gemma3_text", r#","sliding_window":9,"sliding_window_pattern":2"#, "9/1 -/0 9/1 -/0");
    check("gemma3_text", "", "4096/1 4096/1 4096/1 4096/1");
    check("gemma3_text", r#","use_bidirectional_attention":true"#, "`use_bidirectional_attention`");
}

#[test]
fn scaled_rotations_of_a_configuration() {
    let check = |keys: &str, expected: Result<RopeScaling, &str>| {
        let config = format!(r#"{{"model_type":"llama","max_position_embeddings":640{keys}}}"#);
        match (arch(&config), expected) {
            (Ok(a), Ok(scaling)) => assert_eq!(a.ropes[0].scaling, scaling, "{config}"),
            (Err(e), Err(expected)) => assert!(e.contains(expected), "{config}: {e}"),
            (got, expected) => panic!("{config}: {got:?} is not {expected:?}"),
        }
    };
    check("", Ok(RopeScaling::None));
    check(r#","rope_scaling":{"type":"linear","factor":4}"#, Ok(RopeScaling::Linear { factor: 4.0 }));
    let llama3 = r#","rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64}"#;
    let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 64.0 };
    check(llama3, Ok(scaling));
    // Without a factor, it is by how much the context was stretched; 0.1·ln 10 + 1 for the attention.
    let yarn =
        r#","rope_parameters":{"rope_type":"yarn","factor":null,"original_max_position_embeddings":64}"#;
    let plain = |attention_factor, factor| RopeScaling::Yarn {
        factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 64.0,
        truncate: true,
        attention_factor,
    };
    check(yarn, Ok(plain(1.230_258_5, 10.0)));
    let equal = r#","rope_scaling":{"type":"yarn","factor":40,"mscale":0.7,"mscale_all_dim":0.7,"original_max_position_embeddings":64}"#;
    check(equal, Ok(plain(1.0, 40.0)));
    check(r#","rope_scaling":{"type":"dynamic","factor":4}"#, Err("key `rope_scaling`"));
    check(r#","rope_scaling":{"type":"linear"}"#, Err("key `factor`"));
}

#[test]
fn names_are_read_as_they_are_spelled() {
    for family in FAMILIES {
        for names in [&family.hf_names, &family.gguf_names] {
            for &(name, role) in names.globals {
                let key = TensorKey { layer: None, role };
                assert_eq!(names.meaning(name), Meaning::Tensor(key));
                assert_eq!(names.meaning(&names.spell(key)), Meaning::Tensor(key), "{}", family.model_type);
            }
            for &(_, role) in names.layer.iter().flat_map(|t| t.iter()) {
                let key = TensorKey { layer: Some(42), role };
                assert_eq!(names.meaning(&names.spell(key)), Meaning::Tensor(key), "{}", family.model_type);
            }
            for &(_, _, part) in names.expert {
                let name = names.spell_expert(7, 255, part);
                assert_eq!(names.meaning(&name), Meaning::Expert { layer: 7, expert: 255, part });
            }
        }
    }
}

#[test]
fn names_in_detail() {
    let family = |t: &str| FAMILIES.iter().find(|f| f.model_type == t).unwrap();
    let check = |family_name: &str, name: &str, expected: Meaning| {
        let f = family(family_name);
        let names = if name.starts_with("blk") { &f.gguf_names } else { &f.hf_names };
        assert_eq!(names.meaning(name), expected, "{name}");
    };
    let in_layer = |layer, role| Meaning::Tensor(TensorKey { layer: Some(layer), role });
    let stacked = |layer, stack| Meaning::Stacked { layer, stack };
    check("mixtral", "model.layers.0.block_sparse_moe.gate.weight", in_layer(0, Role::Router));
    check("mixtral", "model.layers.12.mlp.experts.gate_up_proj", stacked(12, Stack::GateUp));
    check("mixtral", "blk.3.ffn_down_exps.weight", stacked(3, Stack::One(Part::Down)));
    check("mixtral", "blk.3.ffn_gate.11.weight", Meaning::Expert { layer: 3, expert: 11, part: Part::Gate });
    check("glm_moe_dsa", "model.layers.78.shared_head.head.weight", in_layer(78, Role::MtpOutput));
    check("glm_moe_dsa", "blk.78.nextn.embed_tokens.weight", in_layer(78, Role::MtpEmbedding));
    check("glm_moe_dsa", "blk.4.exp_probs_b.bias", in_layer(4, Role::RouterBias));
    check("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", Meaning::Buffer);
    for unknown in [
        "model.layers.01.mlp.up_proj.weight",
        "model.layers.+1.mlp.up_proj.weight",
        "model.layers..mlp.up_proj.weight",
        "model.layers.1",
        "model.layers.99999999999999999999.mlp.up_proj.weight",
        "blk.0.ffn_gate_exps.bias",
        "",
    ] {
        check("llama", unknown, Meaning::Unknown);
    }
}

#[test]
fn every_family_has_names_in_both_formats() {
    let names = supported_families();
    assert!(names.iter().all(|n| !n.architectures.is_empty() && !n.gguf_arch.is_empty()));
}
