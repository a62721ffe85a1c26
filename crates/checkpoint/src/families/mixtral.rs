//! Mixtral (arXiv 2401.04088): Llama's attention, every layer a mixture. In GGUF it is a `llama` with experts.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, is_set, no_window_in_hf, weights_scale};
use super::names::{
    GGUF_EXPERT, GGUF_GLOBALS, GGUF_GQA, GGUF_LAYER, GGUF_REFUSED, GGUF_ROUTER, GGUF_STACKED, HF_BUFFERS,
    HF_GLOBALS, HF_GQA, HF_LAYER, HF_STACKED, Names, Part,
};
use crate::arch::{Arch, Ffn, Gate, GateScore, Moe, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, WIDTH_MAX};

const NAME: &str = "mixtral";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 32_000,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    context: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
};
const WIDTH_DEFAULT: usize = 14_336;
const EXPERTS_DEFAULT: usize = 8;
const TOP_K_DEFAULT: usize = 2;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    architectures: &["MixtralForCausalLM"],
    gguf_arch: "llama",
    claims_gguf: |c| is_set(c, "expert_count"),
    from_hf,
    from_gguf,
    hf_names: Names {
        layer_prefix: HF_LAYER,
        globals: HF_GLOBALS,
        // The second spelling is that of transformers 5's own module tree.
        layer: &[
            HF_GQA,
            &[("block_sparse_moe.gate.weight", Role::Router), ("mlp.gate.weight", Role::Router)],
        ],
        expert: &[
            ("block_sparse_moe.experts.", ".w1.weight", Part::Gate),
            ("block_sparse_moe.experts.", ".w3.weight", Part::Up),
            ("block_sparse_moe.experts.", ".w2.weight", Part::Down),
        ],
        stacked: HF_STACKED,
        buffers: HF_BUFFERS,
        refused: &[],
    },
    gguf_names: Names {
        layer_prefix: GGUF_LAYER,
        globals: GGUF_GLOBALS,
        layer: &[GGUF_GQA, GGUF_ROUTER],
        expert: GGUF_EXPERT,
        stacked: GGUF_STACKED,
        buffers: &[],
        refused: GGUF_REFUSED,
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS, false)?;
    no_window_in_hf(c, &arch)?;
    let experts = match c.number_opt("num_local_experts", 1, EXPERTS_MAX)? {
        Some(n) => n,
        None => c.count_or("num_experts", EXPERTS_DEFAULT, EXPERTS_MAX)?,
    };
    let top_k = c.count_or("num_experts_per_tok", TOP_K_DEFAULT, EXPERTS_MAX)?;
    let width = c.count_or("intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?;
    put_mixture(&mut arch, experts, top_k, width, 1.0);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // The converter permutes the rows of q and k, so that neighbours are rotated together.
    let mut arch = gqa_from_gguf(c, NAME, false, RopeLayout::Interleaved)?;
    let experts = c.count("expert_count", EXPERTS_MAX)?;
    let top_k = c.count("expert_used_count", EXPERTS_MAX)?;
    let width = match c.number_opt("expert_feed_forward_length", 1, WIDTH_MAX)? {
        Some(n) => n,
        None => c.count("feed_forward_length", WIDTH_MAX)?,
    };
    put_mixture(&mut arch, experts, top_k, width, weights_scale(c)?);
    Ok(arch)
}

fn put_mixture(arch: &mut Arch, experts: usize, top_k: usize, width: usize, scale: f32) {
    let gate = Gate {
        score: GateScore::Softmax,
        selection_bias: false,
        groups: None,
        normalize: true,
        normalize_eps: 0.0,
        scale,
    };
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe = Some(Moe { experts, top_k, width, shared_width: None, gate });
}
