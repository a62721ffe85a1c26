//! Granite 3 MoE: constants on embeddings, residuals, scores and logits; the softmax runs over the chosen experts only.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{RoutedDefaults, moe_from_gguf, routed_from_hf};
use super::names::{Names, Part, Stack};
use super::rotary::RopeDefaults;
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_ROUTER, HF, HF_GQA, HF_GQA_BIAS};
use crate::arch::{Arch, Ffn, Gate, GateScore, RopeLayout, Scales};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "granitemoe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 32_000,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 8, top_k: 2, width: 11_008 };
const GATE: Gate = Gate::plain(GateScore::SoftmaxOfChosen);

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["GraniteMoeForCausalLM"],
    gguf_arch: "granitemoe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        // The second spelling is that of transformers 5's own module tree.
        layer: &[
            HF_GQA,
            HF_GQA_BIAS,
            &[
                ("block_sparse_moe.router.layer.weight", Role::Router),
                ("block_sparse_moe.router.weight", Role::Router),
            ],
        ],
        stacked: &[
            ("block_sparse_moe.input_linear.weight", Stack::GateUp),
            ("block_sparse_moe.output_linear.weight", Stack::One(Part::Down)),
            ("block_sparse_moe.experts.gate_up_proj", Stack::GateUp),
            ("block_sparse_moe.experts.down_proj", Stack::One(Part::Down)),
        ],
        ..HF
    },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_ROUTER], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let number = |key: &str| Ok(c.float_opt(key)?.unwrap_or(1.0) as f32);
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let scale = number("attention_multiplier")?;
    with_gqa(&mut arch, |a| a.scale = scale);
    arch.scales = Scales {
        embedding: number("embedding_multiplier")?,
        residual: number("residual_multiplier")?,
        logits: 1.0 / number("logits_scaling")?,
        logit_softcap: None,
    };
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe =
        Some(routed_from_hf(c, &["num_local_experts", "num_experts"], "intermediate_size", &ROUTED, GATE)?);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // Writers use 0 for "unset".
    let number = |key: &str| Ok(c.float_opt(key)?.filter(|&v| v != 0.0).map(|v| v as f32));
    // Rows of q and k are permuted as in arch `llama`.
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::Interleaved)?;
    arch.scales = Scales {
        embedding: number("embedding_scale")?.unwrap_or(1.0),
        residual: number("residual_scale")?.unwrap_or(1.0),
        logits: 1.0 / number("logit_scale")?.unwrap_or(1.0),
        logit_softcap: None,
    };
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe = Some(moe_from_gguf(c, GATE)?);
    Ok(arch)
}
