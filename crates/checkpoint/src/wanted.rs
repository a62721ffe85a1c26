//! Which tensors an [`Arch`] asks for, and of which shape.

use crate::arch::{Arch, Attention, Ffn, IndexerKind};
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
    vec![
        want(Role::TokenEmbedding, Matrix, [a.vocab, a.hidden]),
        want(Role::OutputNorm, Float, [a.hidden]),
        want(Role::Output, OptionalMatrix, [a.vocab, a.hidden]),
    ]
}

/// Tensors of layer `layer`, but for the routed experts. `split_kv_b`: the file has keys and values of MLA apart.
pub(crate) fn in_layer(a: &Arch, layer: usize, split_kv_b: bool) -> Vec<Wanted> {
    let mut out = vec![want(Role::AttnNorm, Float, [a.hidden]), want(Role::FfnNorm, Float, [a.hidden])];
    attention(a, split_kv_b, &mut out);
    indexer(a, layer, &mut out);
    feed_forward(a, layer, &mut out);
    if layer >= a.layers {
        mtp(a, &mut out);
    }
    out
}

fn attention(a: &Arch, split_kv_b: bool, out: &mut Vec<Wanted>) {
    match a.attention {
        Attention::Gqa { heads, kv_heads, head_dim, qk_norm } => {
            out.extend([
                want(Role::AttnQ, Matrix, [heads * head_dim, a.hidden]),
                want(Role::AttnK, Matrix, [kv_heads * head_dim, a.hidden]),
                want(Role::AttnV, Matrix, [kv_heads * head_dim, a.hidden]),
                want(Role::AttnOut, Matrix, [a.hidden, heads * head_dim]),
            ]);
            if qk_norm {
                out.push(want(Role::AttnQNorm, Float, [head_dim]));
                out.push(want(Role::AttnKNorm, Float, [head_dim]));
            }
        }
        Attention::Mla { heads, q_lora, kv_lora, nope, rope, v, .. } => {
            out.extend([
                want(Role::AttnQA, Matrix, [q_lora, a.hidden]),
                want(Role::AttnQANorm, Float, [q_lora]),
                want(Role::AttnQB, Matrix, [heads * (nope + rope), q_lora]),
                want(Role::AttnKvA, Matrix, [kv_lora + rope, a.hidden]),
                want(Role::AttnKvANorm, Float, [kv_lora]),
                want(Role::AttnOut, Matrix, [a.hidden, heads * v]),
            ]);
            if split_kv_b {
                out.push(want(Role::AttnKB, Matrix, [heads, kv_lora, nope]));
                out.push(want(Role::AttnVB, Matrix, [heads, v, kv_lora]));
            } else {
                out.push(want(Role::AttnKvB, Matrix, [heads * (nope + v), kv_lora]));
            }
        }
    }
}

fn indexer(a: &Arch, layer: usize, out: &mut Vec<Wanted>) {
    let Some(dsa) = &a.dsa else { return };
    let Attention::Mla { q_lora, .. } = a.attention else {
        return;
    };
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

fn feed_forward(a: &Arch, layer: usize, out: &mut Vec<Wanted>) {
    match (a.ffn.get(layer), &a.moe) {
        (Some(&Ffn::Dense { width }), _) => out.extend([
            want(Role::FfnGate, Matrix, [width, a.hidden]),
            want(Role::FfnUp, Matrix, [width, a.hidden]),
            want(Role::FfnDown, Matrix, [a.hidden, width]),
        ]),
        (Some(Ffn::Moe), Some(moe)) => {
            out.push(want(Role::Router, Float, [moe.experts, a.hidden]));
            if moe.gate.selection_bias {
                out.push(want(Role::RouterBias, Float, [moe.experts]));
            }
            if let Some(width) = moe.shared_width {
                out.extend([
                    want(Role::SharedGate, Matrix, [width, a.hidden]),
                    want(Role::SharedUp, Matrix, [width, a.hidden]),
                    want(Role::SharedDown, Matrix, [a.hidden, width]),
                ]);
            }
        }
        _ => {}
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
