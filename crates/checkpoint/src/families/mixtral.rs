//! Mixtral (arXiv 2401.04088): Llama's attention, every layer a mixture. In GGUF it is a `llama` with experts.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, is_set};
use super::mixture::{RoutedDefaults, moe_from_gguf, routed_from_hf, weights_scale};
use super::names::Names;
use super::rotary::{RopeDefaults, windows_from_hf};
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_ROUTER, HF, HF_GQA, HF_MIXTRAL_EXPERT};
use crate::arch::{Arch, Ffn, Gate, GateNormalization, GateScore, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "mixtral";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 32_000,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 131_072,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 1_000_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 8, top_k: 2, width: 14_336 };
const GATE: Gate =
    Gate { normalization: GateNormalization::Sum { eps: 0.0 }, ..Gate::plain(GateScore::Softmax) };

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["MixtralForCausalLM"],
    gguf_arch: "llama",
    claims_gguf: |c| is_set(c, "expert_count"),
    from_hf,
    from_gguf,
    hf_names: Names {
        layer: &[
            HF_GQA,
            // The second spelling is that of transformers 5's own module tree.
            &[("block_sparse_moe.gate.weight", Role::Router), ("mlp.gate.weight", Role::Router)],
        ],
        expert: HF_MIXTRAL_EXPERT,
        ..HF
    },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_ROUTER], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    windows_from_hf(c, &mut arch, None, |_| true)?;
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe =
        Some(routed_from_hf(c, &["num_local_experts", "num_experts"], "intermediate_size", &ROUTED, GATE)?);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // The converter permutes the rows of q and k, so that neighbours are rotated together.
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::Interleaved)?;
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe = Some(moe_from_gguf(c, Gate { scale: weights_scale(c)?, ..GATE })?);
    Ok(arch)
}
