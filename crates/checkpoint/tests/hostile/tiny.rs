//! How a case is checked, and the smallest sound models, which the cases break.

use std::fs;

use calypte_checkpoint::{Catalog, OpenError, open};
use calypte_testkit::gguf_writer::{GgufValue, GgufWriter};
use calypte_testkit::safetensors_writer::SafetensorsWriter;

/// A directory to write and the path in it to open (empty: the directory itself).
pub(crate) struct Case {
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) target: &'static str,
}

pub(crate) fn open_case(case: &Case) -> (Result<Catalog, OpenError>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in &case.files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let target = if case.target.is_empty() { dir.path().to_owned() } else { dir.path().join(case.target) };
    (open(&target), dir)
}

/// The case must be refused with a message that names the file and contains all of `says`.
pub(crate) fn check(what: &str, case: Case, says: &[&str]) {
    let (result, dir) = open_case(&case);
    let text = match result {
        Ok(_) => panic!("{what}: was opened"),
        Err(e) => e.to_string(),
    };
    let path = dir.path().to_str().unwrap();
    for part in [path, "expected", "; "].iter().chain(says) {
        assert!(text.contains(part), "{what}: no `{part}` in: {text}");
    }
}

pub(crate) fn check_gguf(what: &str, writer: GgufWriter, says: &[&str]) {
    check_bytes(what, writer.build(), says);
}

pub(crate) fn check_bytes(what: &str, bytes: Vec<u8>, says: &[&str]) {
    let says: Vec<&str> = says.iter().copied().chain(["m.gguf"]).collect();
    check(what, Case { files: vec![("m.gguf".to_owned(), bytes)], target: "m.gguf" }, &says);
}

/// The smallest mixture in GGUF: one layer, two experts.
pub(crate) fn tiny_gguf() -> GgufWriter {
    let number = |n: u32| GgufValue::U32(n);
    GgufWriter::new()
        .key("general.architecture", "llama")
        .key("general.name", "tiny")
        .key("llama.context_length", number(64))
        .key("llama.embedding_length", number(32))
        .key("llama.block_count", number(1))
        .key("llama.feed_forward_length", number(32))
        .key("llama.attention.head_count", number(2))
        .key("llama.attention.head_count_kv", number(1))
        .key("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5))
        .key("llama.rope.freq_base", GgufValue::F32(10_000.0))
        .key("llama.expert_count", number(2))
        .key("llama.expert_used_count", number(1))
        .zeros("token_embd.weight", &[8, 32])
        .zeros("output_norm.weight", &[32])
        .zeros("blk.0.attn_norm.weight", &[32])
        .zeros("blk.0.attn_q.weight", &[32, 32])
        .zeros("blk.0.attn_k.weight", &[16, 32])
        .zeros("blk.0.attn_v.weight", &[16, 32])
        .zeros("blk.0.attn_output.weight", &[32, 32])
        .zeros("blk.0.ffn_norm.weight", &[32])
        .zeros("blk.0.ffn_gate_inp.weight", &[2, 32])
        .zeros("blk.0.ffn_gate_exps.weight", &[2, 32, 32])
        .zeros("blk.0.ffn_up_exps.weight", &[2, 32, 32])
        .zeros("blk.0.ffn_down_exps.weight", &[2, 32, 32])
}

pub(crate) const ROUTER: &str = "blk.0.ffn_gate_inp.weight";
pub(crate) const UP: &str = "blk.0.ffn_up_exps.weight";
/// The smallest mixture as a Hugging Face directory.
pub(crate) struct Hf {
    pub(crate) config: String,
    pub(crate) weights: SafetensorsWriter,
    pub(crate) more: Vec<(String, Vec<u8>)>,
}

pub(crate) fn tiny_hf() -> Hf {
    let config = r#"{"architectures":["MixtralForCausalLM"],"model_type":"mixtral","vocab_size":8,"hidden_size":32,
"intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"num_local_experts":2,
"num_experts_per_tok":1,"max_position_embeddings":64,"rope_theta":10000.0,"eos_token_id":7}"#;
    let mut weights = SafetensorsWriter::new()
        .zeros("model.embed_tokens.weight", &[8, 32])
        .zeros("model.norm.weight", &[32])
        .zeros("model.layers.0.input_layernorm.weight", &[32])
        .zeros("model.layers.0.self_attn.q_proj.weight", &[32, 32])
        .zeros("model.layers.0.self_attn.k_proj.weight", &[16, 32])
        .zeros("model.layers.0.self_attn.v_proj.weight", &[16, 32])
        .zeros("model.layers.0.self_attn.o_proj.weight", &[32, 32])
        .zeros("model.layers.0.post_attention_layernorm.weight", &[32])
        .zeros("model.layers.0.block_sparse_moe.gate.weight", &[2, 32]);
    for expert in 0..2 {
        for w in ["w1", "w2", "w3"] {
            weights = weights.zeros(&expert_name(expert, w), &[32, 32]);
        }
    }
    Hf { config: config.to_owned(), weights, more: Vec::new() }
}

pub(crate) fn expert_name(expert: usize, w: &str) -> String {
    format!("model.layers.0.block_sparse_moe.experts.{expert}.{w}.weight")
}

impl Hf {
    pub(crate) fn case(self) -> Case {
        let mut files = vec![("config.json".to_owned(), self.config.into_bytes())];
        files.push(("model.safetensors".to_owned(), self.weights.build()));
        files.extend(self.more);
        Case { files, target: "" }
    }

    /// Replaces text in `config.json`, which must be there.
    pub(crate) fn config(mut self, from: &str, to: &str) -> Self {
        assert!(self.config.contains(from), "{from}");
        self.config = self.config.replace(from, to);
        self
    }

    /// Adds a key to `config.json`.
    pub(crate) fn key(self, key: &str, value: &str) -> Self {
        self.config(r#""eos_token_id":7"#, &format!(r#""eos_token_id":7,"{key}":{value}"#))
    }

    pub(crate) fn weights(mut self, change: impl FnOnce(SafetensorsWriter) -> SafetensorsWriter) -> Self {
        self.weights = change(self.weights);
        self
    }

    pub(crate) fn file(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.more.push((name.to_owned(), bytes.into()));
        self
    }

    /// The weights in two files with an index; the file name of the second shard in the index may be changed.
    pub(crate) fn sharded(
        self,
        index_change: impl FnOnce(String) -> String,
        shards: [bool; 2],
        with_index: bool,
    ) -> Case {
        let all: Vec<String> = self.weights.names().map(str::to_owned).collect();
        let (first, second) = all.split_at(all.len() / 2);
        let only = |drop: &[String]| drop.iter().fold(self.weights.clone(), |w, n| w.without(n)).build();
        let name = |i: usize| format!("model-0000{i}-of-00002.safetensors");
        let mut files = vec![("config.json".to_owned(), self.config.clone().into_bytes())];
        for (i, drop) in [(1, second), (2, first)] {
            if shards[i - 1] {
                files.push((name(i), only(drop)));
            }
        }
        let entries = [(1, first), (2, second)].map(|(i, names)| {
            names.iter().map(|n| format!(r#""{n}":"{}""#, name(i))).collect::<Vec<_>>().join(",\n")
        });
        let index = format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, entries.join(","));
        if with_index {
            files.push(("model.safetensors.index.json".to_owned(), index_change(index).into_bytes()));
        }
        files.extend(self.more);
        Case { files, target: "" }
    }
}

pub(crate) fn check_hf(what: &str, hf: Hf, says: &[&str]) {
    check(what, hf.case(), says);
}

/// Replaces the single weight file by these bytes.
pub(crate) fn check_weights(what: &str, bytes: Vec<u8>, says: &[&str]) {
    let mut case = tiny_hf().case();
    case.files[1].1 = bytes;
    let says: Vec<&str> = says.iter().copied().chain(["model.safetensors"]).collect();
    check(what, case, &says);
}
