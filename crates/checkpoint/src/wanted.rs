//! Which tensors an [`Arch`] asks for, and of which shape.

use crate::arch::{Arch, Attention, Ffn, Gqa, IndexerKind, Mla, Moe, QkNorm, RopeScaling};
use crate::catalog::Role;

/// One tensor that a layer must or may have.
pub(crate) struct Wanted {
    pub role: Role,
    pub shape: Vec<usize>,
    pub kind: Kind,
}

/// What a tensor is used for decides which types it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Norms, biases and routers: float types only.
    Float,
    /// Matrices: any type.
    Matrix,
    /// Matrices that may be absent.
    OptionalMatrix,
}

use Kind::{Float, Matrix, OptionalMatrix};

fn want(role: Role, kind: Kind, shape: impl Into<Vec<usize>>) -> Wanted {
    Wanted { role, shape: shape.into(), kind }
}

/// Tensors outside the layers.
pub(crate) fn globals(a: &Arch) -> Vec<Wanted> {
    let mut out = vec![
        want(Role::TokenEmbedding, Matrix, [a.vocab, a.hidden]),
        want(Role::OutputNorm, Float, [a.hidden]),
        want(Role::Output, OptionalMatrix, [a.vocab, a.hidden]),
    ];
    if let Some(rope) = a.ropes.iter().find(|r| r.scaling == RopeScaling::Stored) {
        out.push(want(Role::RopeFactors, Float, [rope.dims / 2]));
    }
    out
}

/// Tensors of layer `layer`, but for the routed experts. Some have two spellings that are cut differently; `has` tells
/// which of them the file has in this layer.
pub(crate) fn in_layer(a: &Arch, layer: usize, has: &dyn Fn(Role) -> bool) -> Vec<Wanted> {
    let mut out = vec![want(Role::AttnNorm, Float, [a.hidden]), want(Role::FfnNorm, Float, [a.hidden])];
    if a.norms.post {
        out.push(want(Role::AttnPostNorm, Float, [a.hidden]));
        out.push(want(Role::FfnPostNorm, Float, [a.hidden]));
    }
    match (a.short_conv_of(layer), &a.attention) {
        (Some(conv), _) => out.extend([
            want(Role::ConvIn, Matrix, [3 * a.hidden, a.hidden]),
            want(Role::ConvKernel, Float, [a.hidden, conv.length]),
            want(Role::ConvOut, Matrix, [a.hidden, a.hidden]),
        ]),
        (None, Attention::Gqa(gqa)) => grouped(gqa, a.hidden, &mut out),
        (None, Attention::Mla(mla)) => {
            latent(mla, a.hidden, has(Role::AttnKB) || has(Role::AttnVB), &mut out);
        }
    }
    indexer(a, layer, &mut out);
    feed_forward(a, layer, has, &mut out);
    if layer >= a.layers {
        mtp(a, &mut out);
    }
    out
}

fn grouped(a: &Gqa, hidden: usize, out: &mut Vec<Wanted>) {
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    out.extend([
        want(Role::AttnQ, Matrix, [q, hidden]),
        want(Role::AttnK, Matrix, [kv, hidden]),
        want(Role::AttnV, Matrix, [kv, hidden]),
        want(Role::AttnOut, Matrix, [hidden, q]),
    ]);
    if a.qkv_bias {
        out.extend([
            want(Role::AttnQBias, Float, [q]),
            want(Role::AttnKBias, Float, [kv]),
            want(Role::AttnVBias, Float, [kv]),
        ]);
    }
    if a.out_bias {
        out.push(want(Role::AttnOutBias, Float, [hidden]));
    }
    let norms = a.qk_norm.map(|kind| match kind {
        QkNorm::PerHead => (a.head_dim, a.head_dim),
        QkNorm::AllHeads => (q, kv),
    });
    if let Some((q, k)) = norms {
        out.push(want(Role::AttnQNorm, Float, [q]));
        out.push(want(Role::AttnKNorm, Float, [k]));
    }
    if a.sinks {
        out.push(want(Role::AttnSinks, Float, [a.heads]));
    }
}

fn latent(a: &Mla, hidden: usize, split_kv_b: bool, out: &mut Vec<Wanted>) {
    let queries = a.heads * (a.nope + a.rope);
    match a.q_lora {
        Some(q_lora) => out.extend([
            want(Role::AttnQA, Matrix, [q_lora, hidden]),
            want(Role::AttnQANorm, Float, [q_lora]),
            want(Role::AttnQB, Matrix, [queries, q_lora]),
        ]),
        None => out.push(want(Role::AttnQ, Matrix, [queries, hidden])),
    }
    out.extend([
        want(Role::AttnKvA, Matrix, [a.kv_lora + a.rope, hidden]),
        want(Role::AttnKvANorm, Float, [a.kv_lora]),
        want(Role::AttnOut, Matrix, [hidden, a.heads * a.v]),
    ]);
    if split_kv_b {
        out.push(want(Role::AttnKB, Matrix, [a.heads, a.kv_lora, a.nope]));
        out.push(want(Role::AttnVB, Matrix, [a.heads, a.v, a.kv_lora]));
    } else {
        out.push(want(Role::AttnKvB, Matrix, [a.heads * (a.nope + a.v), a.kv_lora]));
    }
}

fn indexer(a: &Arch, layer: usize, out: &mut Vec<Wanted>) {
    let Some(dsa) = &a.dsa else { return };
    let Attention::Mla(Mla { q_lora: Some(q_lora), .. }) = a.attention else { return };
    if dsa.layers.get(layer) != Some(&IndexerKind::Full) {
        return;
    }
    out.extend([
        want(Role::IndexerQB, Matrix, [dsa.heads * dsa.head_dim, q_lora]),
        want(Role::IndexerK, Matrix, [dsa.head_dim, a.hidden]),
        want(Role::IndexerKNorm, Float, [dsa.head_dim]),
        want(Role::IndexerKNormBias, Float, [dsa.head_dim]),
        want(Role::IndexerWeights, Matrix, [dsa.heads, a.hidden]),
    ]);
}

fn feed_forward(a: &Arch, layer: usize, has: &dyn Fn(Role) -> bool, out: &mut Vec<Wanted>) {
    match (a.ffn.get(layer), &a.moe) {
        (Some(&Ffn::Dense { width }), _) => {
            out.extend([
                want(Role::FfnGate, Matrix, [width, a.hidden]),
                want(Role::FfnUp, Matrix, [width, a.hidden]),
                want(Role::FfnDown, Matrix, [a.hidden, width]),
            ]);
            if a.mlp_bias {
                out.extend([
                    want(Role::FfnGateBias, Float, [width]),
                    want(Role::FfnUpBias, Float, [width]),
                    want(Role::FfnDownBias, Float, [a.hidden]),
                ]);
            }
        }
        (Some(Ffn::Moe), Some(moe)) => mixture(moe, a.hidden, has(Role::ExpertGateUpBias), out),
        _ => {}
    }
}

fn mixture(moe: &Moe, hidden: usize, fused_bias: bool, out: &mut Vec<Wanted>) {
    out.push(want(Role::Router, Float, [moe.experts, hidden]));
    if moe.gate.logit_bias {
        out.push(want(Role::RouterLogitBias, Float, [moe.experts]));
    }
    if moe.gate.selection_bias {
        out.push(want(Role::RouterBias, Float, [moe.experts]));
    }
    if moe.expert_bias {
        if fused_bias {
            out.push(want(Role::ExpertGateUpBias, Float, [moe.experts, 2 * moe.width]));
        } else {
            out.push(want(Role::ExpertGateBias, Float, [moe.experts, moe.width]));
            out.push(want(Role::ExpertUpBias, Float, [moe.experts, moe.width]));
        }
        out.push(want(Role::ExpertDownBias, Float, [moe.experts, hidden]));
    }
    if let Some(width) = moe.shared_width {
        out.extend([
            want(Role::SharedGate, Matrix, [width, hidden]),
            want(Role::SharedUp, Matrix, [width, hidden]),
            want(Role::SharedDown, Matrix, [hidden, width]),
        ]);
        if moe.shared_gate {
            out.push(want(Role::SharedRouter, Float, [hidden]));
        }
    }
}

fn mtp(a: &Arch, out: &mut Vec<Wanted>) {
    out.extend([
        want(Role::MtpProjection, Matrix, [a.hidden, 2 * a.hidden]),
        want(Role::MtpEmbeddingNorm, Float, [a.hidden]),
        want(Role::MtpHiddenNorm, Float, [a.hidden]),
        want(Role::MtpOutputNorm, Float, [a.hidden]),
        want(Role::MtpEmbedding, OptionalMatrix, [a.vocab, a.hidden]),
        want(Role::MtpOutput, OptionalMatrix, [a.vocab, a.hidden]),
    ]);
}
