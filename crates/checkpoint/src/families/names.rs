//! How tensors are spelled: tables from names to roles, and back for messages.

use crate::catalog::{Role, TensorKey};

/// How one file format spells the tensors of one family.
pub(crate) struct Names {
    /// What precedes the layer number.
    pub layer_prefix: &'static str,
    /// Tensors outside the layers.
    pub globals: &'static [(&'static str, Role)],
    /// Tensors of a layer: what follows the layer number and its dot. The first name of a role is the usual one.
    pub layer: &'static [&'static [(&'static str, Role)]],
    /// One matrix of one expert: what stands before and after the expert's number.
    pub expert: &'static [(&'static str, &'static str, Part)],
    /// The same matrix of all experts in one tensor.
    pub stacked: &'static [(&'static str, Stack)],
    /// Endings of buffers that are computed from the configuration and never read.
    pub buffers: &'static [&'static str],
    /// Tensors that change the answer in a way that is not supported, and what they are.
    pub refused: &'static [(&'static str, &'static str)],
}

/// One matrix of an expert, in the order in which a catalogue lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Gate,
    Up,
    Down,
}

/// What a tensor with all experts holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// `[experts, rows, cols]`
    One(Part),
    /// `[experts, 2·width, hidden]`: the rows of the gate, then those of up.
    GateUp,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Tensor(TensorKey),
    Expert { layer: usize, expert: usize, part: Part },
    Stacked { layer: usize, stack: Stack },
    Buffer,
    Refused(&'static str),
    Unknown,
}

impl Names {
    /// What `name` means.
    pub fn meaning(&self, name: &str) -> Meaning {
        if let Some((_, role)) = self.globals.iter().find(|(n, _)| *n == name) {
            return Meaning::Tensor(TensorKey { layer: None, role: *role });
        }
        if let Some((_, what)) = self.refused.iter().find(|(n, _)| *n == name) {
            return Meaning::Refused(what);
        }
        if self.buffers.iter().any(|end| name.ends_with(end)) {
            return Meaning::Buffer;
        }
        match name.strip_prefix(self.layer_prefix).and_then(leading_number) {
            Some((layer, rest)) => {
                rest.strip_prefix('.').map_or(Meaning::Unknown, |rest| self.in_layer(layer, rest))
            }
            None => Meaning::Unknown,
        }
    }

    fn in_layer(&self, layer: usize, rest: &str) -> Meaning {
        if let Some((_, role)) = self.layer.iter().flat_map(|t| t.iter()).find(|(n, _)| *n == rest) {
            return Meaning::Tensor(TensorKey { layer: Some(layer), role: *role });
        }
        if let Some((_, stack)) = self.stacked.iter().find(|(n, _)| *n == rest) {
            return Meaning::Stacked { layer, stack: *stack };
        }
        for (before, after, part) in self.expert {
            if let Some((expert, tail)) = rest.strip_prefix(before).and_then(leading_number)
                && tail == *after
            {
                return Meaning::Expert { layer, expert, part: *part };
            }
        }
        Meaning::Unknown
    }

    /// The usual name of a tensor.
    pub fn spell(&self, key: TensorKey) -> String {
        let find =
            |table: &[(&'static str, Role)]| table.iter().find(|(_, r)| *r == key.role).map(|(n, _)| *n);
        match key.layer {
            None => find(self.globals).unwrap_or_default().to_owned(),
            Some(layer) => {
                let rest = self.layer.iter().find_map(|t| find(t)).unwrap_or_default();
                format!("{}{layer}.{rest}", self.layer_prefix)
            }
        }
    }

    /// The usual name of one matrix of one expert.
    pub fn spell_expert(&self, layer: usize, expert: usize, part: Part) -> String {
        let rest = match self.expert.iter().find(|(_, _, p)| *p == part) {
            Some((before, after, _)) => format!("{before}{expert}{after}"),
            None => String::new(),
        };
        format!("{}{layer}.{rest}", self.layer_prefix)
    }
}

/// A decimal number without leading zeros, and what follows it.
fn leading_number(text: &str) -> Option<(usize, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((number.parse().ok()?, rest))
}

/// The prefix of layers in safetensors files.
pub(crate) const HF_LAYER: &str = "model.layers.";
/// The prefix of layers in GGUF files.
pub(crate) const GGUF_LAYER: &str = "blk.";

/// Outside the layers, safetensors.
pub(crate) const HF_GLOBALS: &[(&str, Role)] = &[
    ("model.embed_tokens.weight", Role::TokenEmbedding),
    ("model.norm.weight", Role::OutputNorm),
    ("lm_head.weight", Role::Output),
];

/// Outside the layers, GGUF.
pub(crate) const GGUF_GLOBALS: &[(&str, Role)] = &[
    ("token_embd.weight", Role::TokenEmbedding),
    ("output_norm.weight", Role::OutputNorm),
    ("output.weight", Role::Output),
];

/// The tables of wavelengths that old checkpoints stored.
pub(crate) const HF_BUFFERS: &[&str] = &["rotary_emb.inv_freq"];

/// Scaled rotary embedding hides in a tensor.
pub(crate) const GGUF_REFUSED: &[(&str, &str)] =
    &[("rope_freqs.weight", "scaled rotary embedding (llama 3.1 and later)")];

/// Grouped-query attention and norms, safetensors.
pub(crate) const HF_GQA: &[(&str, Role)] = &[
    ("input_layernorm.weight", Role::AttnNorm),
    ("self_attn.q_proj.weight", Role::AttnQ),
    ("self_attn.k_proj.weight", Role::AttnK),
    ("self_attn.v_proj.weight", Role::AttnV),
    ("self_attn.o_proj.weight", Role::AttnOut),
    ("post_attention_layernorm.weight", Role::FfnNorm),
];

/// Grouped-query attention and norms, GGUF.
pub(crate) const GGUF_GQA: &[(&str, Role)] = &[
    ("attn_norm.weight", Role::AttnNorm),
    ("attn_q.weight", Role::AttnQ),
    ("attn_k.weight", Role::AttnK),
    ("attn_v.weight", Role::AttnV),
    ("attn_output.weight", Role::AttnOut),
    ("ffn_norm.weight", Role::FfnNorm),
];

/// A dense gated MLP, safetensors.
pub(crate) const HF_MLP: &[(&str, Role)] = &[
    ("mlp.gate_proj.weight", Role::FfnGate),
    ("mlp.up_proj.weight", Role::FfnUp),
    ("mlp.down_proj.weight", Role::FfnDown),
];

/// A dense gated MLP, GGUF.
pub(crate) const GGUF_MLP: &[(&str, Role)] =
    &[("ffn_gate.weight", Role::FfnGate), ("ffn_up.weight", Role::FfnUp), ("ffn_down.weight", Role::FfnDown)];

/// Experts one by one under `mlp.experts`, safetensors.
pub(crate) const HF_EXPERT: &[(&str, &str, Part)] = &[
    ("mlp.experts.", ".gate_proj.weight", Part::Gate),
    ("mlp.experts.", ".up_proj.weight", Part::Up),
    ("mlp.experts.", ".down_proj.weight", Part::Down),
];

/// Experts stacked under `mlp.experts`, safetensors.
pub(crate) const HF_STACKED: &[(&str, Stack)] = &[
    ("mlp.experts.gate_up_proj", Stack::GateUp),
    ("mlp.experts.gate_proj", Stack::One(Part::Gate)),
    ("mlp.experts.up_proj", Stack::One(Part::Up)),
    ("mlp.experts.down_proj", Stack::One(Part::Down)),
    ("mlp.experts.gate_up_proj.weight", Stack::GateUp),
    ("mlp.experts.gate_proj.weight", Stack::One(Part::Gate)),
    ("mlp.experts.up_proj.weight", Stack::One(Part::Up)),
    ("mlp.experts.down_proj.weight", Stack::One(Part::Down)),
];

/// Experts one by one, as early GGUF files had them.
pub(crate) const GGUF_EXPERT: &[(&str, &str, Part)] = &[
    ("ffn_gate.", ".weight", Part::Gate),
    ("ffn_up.", ".weight", Part::Up),
    ("ffn_down.", ".weight", Part::Down),
];

/// Experts stacked, GGUF.
pub(crate) const GGUF_STACKED: &[(&str, Stack)] = &[
    ("ffn_gate_exps.weight", Stack::One(Part::Gate)),
    ("ffn_up_exps.weight", Stack::One(Part::Up)),
    ("ffn_down_exps.weight", Stack::One(Part::Down)),
    ("ffn_gate_up_exps.weight", Stack::GateUp),
];

/// The router, GGUF.
pub(crate) const GGUF_ROUTER: &[(&str, Role)] = &[("ffn_gate_inp.weight", Role::Router)];
