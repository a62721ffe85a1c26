//! A model that can be opened.

use std::collections::BTreeSet;

use calypte_engine::checkpoint::arch::{Arch, Attention, Dsa, Ffn, IndexerKind};
use calypte_engine::checkpoint::{Catalog, ExpertLayer, Role, Source, Tensor, TensorKey, TokenizerSource};
use serde_json::{Value, json};

use super::{Listed, Report, file_name, files_json, files_section, section, sums_json, sums_text};
use crate::output::{grouped, hex, short, table};

const PREDICTION: &str = "multi-token prediction";

/// All that is known.
pub(super) fn report(catalog: &Catalog) -> Report {
    let tensors = list(catalog);
    let mut text = table(&facts(catalog));
    text.push_str(&files_section(&catalog.files));
    text.push_str(&sums_text(&tensors));
    let unclaimed = catalog.unclaimed.iter().map(|t| (t.name.clone(), t.dtype.name().to_string()));
    text.push_str(&section("Tensors that nothing uses", unclaimed));
    let ignored = catalog.ignored.iter().map(|name| (name.clone(), "not part of the model".to_string()));
    text.push_str(&section("Other weight files beside it", ignored));
    let mut json = to_json(catalog);
    sums_json(&tensors, &mut json);
    Report { text, json, tensors }
}

fn list(catalog: &Catalog) -> Vec<Listed> {
    let layers = catalog.arch.layers;
    let mut out = Vec::new();
    let mut put = |t: &Tensor, part: &'static str| out.push((t.extent.file.0, listed(catalog, t, part)));
    for (key, t) in &catalog.tensors {
        put(t, if is_prediction(key, layers) { PREDICTION } else { part(key.role) });
    }
    catalog.unclaimed.iter().for_each(|t| put(t, "unclaimed"));
    for layer in &catalog.experts {
        let part = if layer.layer >= layers { PREDICTION } else { "routed experts" };
        out.extend(experts(catalog, layer, part));
    }
    out.sort_by_key(|(file, t)| (*file, t.offset));
    out.into_iter().map(|(_, t)| t).collect()
}

fn is_prediction(key: &TensorKey, layers: usize) -> bool {
    key.layer.is_some_and(|l| l >= layers)
}

fn listed(catalog: &Catalog, t: &Tensor, part: &'static str) -> Listed {
    Listed {
        name: t.name.clone(),
        part,
        dtype: t.dtype.name().to_string(),
        shape: t.shape.clone(),
        file: file_name(&catalog.files, t.extent.file.0),
        offset: t.extent.offset,
        bytes: t.stored_bytes(),
    }
}

/// Every piece of every expert.
fn experts<'a>(
    catalog: &'a Catalog,
    layer: &'a ExpertLayer,
    part: &'static str,
) -> impl Iterator<Item = (u32, Listed)> + 'a {
    let pieces = layer.extents.first().map_or(0, Vec::len);
    let kinds: Vec<(String, String, Vec<usize>)> = (0..pieces).map(|p| piece(layer, p)).collect();
    layer.extents.iter().enumerate().flat_map(move |(expert, extents)| {
        let kinds = kinds.clone();
        extents.iter().zip(kinds).map(move |(extent, (what, dtype, shape))| {
            let listed = Listed {
                name: format!("layer {} expert {expert} {what}", layer.layer),
                part,
                dtype,
                shape,
                file: file_name(&catalog.files, extent.file.0),
                offset: extent.offset,
                bytes: extent.len,
            };
            (extent.file.0, listed)
        })
    })
}

/// What a piece holds: the matrices that come out of it, its type, and its shape where it is one matrix as it stands.
fn piece(layer: &ExpertLayer, number: usize) -> (String, String, Vec<usize>) {
    let (mut whats, mut dtypes, mut shape) = (Vec::new(), BTreeSet::new(), Vec::new());
    for ((what, matrix), source) in ["gate", "up", "down"].iter().zip(layer.matrices()).zip(layer.sources) {
        let (first, scales) = match source {
            Source::Piece(p) => {
                if p == number {
                    shape = vec![matrix.rows, matrix.cols];
                }
                (p, None)
            }
            Source::Transposed { piece, .. } => (piece, None),
            Source::Mxfp4 { piece, .. } | Source::Int4 { piece } | Source::Fp8 { piece, .. } => {
                (piece, Some(piece + 1))
            }
        };
        if first == number {
            whats.push((*what).to_string());
            dtypes.insert(matrix.dtype.name());
        } else if scales == Some(number) {
            whats.push(format!("{what} scales"));
            dtypes.insert(matrix.dtype.name());
        }
    }
    let dtypes: Vec<&str> = dtypes.into_iter().collect();
    (whats.join(" and "), dtypes.join(" and "), shape)
}

/// What part of a model a tensor belongs to.
fn part(role: Role) -> &'static str {
    use Role::*;
    match role {
        TokenEmbedding | Output | OutputNorm | RopeFactors => "embedding and output",
        AttnNorm | AttnQ | AttnK | AttnV | AttnOut | AttnQBias | AttnKBias | AttnVBias | AttnOutBias
        | AttnQNorm | AttnKNorm | AttnSinks | AttnPostNorm | AttnQA | AttnQANorm | AttnQB | AttnKvA
        | AttnKvANorm | AttnKvB | AttnKB | AttnVB => "attention",
        ConvIn | ConvKernel | ConvOut => "short convolutions",
        IndexerQB | IndexerK | IndexerKNorm | IndexerKNormBias | IndexerWeights => "indexer",
        FfnNorm | FfnGate | FfnUp | FfnDown | FfnGateBias | FfnUpBias | FfnDownBias | FfnPostNorm => {
            "feed-forward"
        }
        Router | RouterLogitBias | RouterBias => "routers",
        ExpertGateBias | ExpertUpBias | ExpertGateUpBias | ExpertDownBias => "expert biases",
        SharedGate | SharedUp | SharedDown | SharedRouter => "shared experts",
        MtpProjection | MtpEmbeddingNorm | MtpHiddenNorm | MtpOutputNorm | MtpEmbedding | MtpOutput => {
            PREDICTION
        }
    }
}

fn tokenizer(catalog: &Catalog) -> (String, bool) {
    match &catalog.tokenizer {
        TokenizerSource::HuggingFace { chat_template, .. } => {
            ("tokenizer.json".to_string(), chat_template.is_some())
        }
        TokenizerSource::Gguf(g) => {
            let pre = g.pre.as_ref().map_or(String::new(), |p| format!(", {p}"));
            let tokens = grouped(g.tokens.len() as u64);
            (format!("in the file ({}{pre}, {tokens} tokens)", g.model), g.chat_template.is_some())
        }
        TokenizerSource::Missing => ("none: token ids only".to_string(), false),
    }
}

fn attention(arch: &Arch) -> String {
    match &arch.attention {
        Attention::Gqa(a) => {
            format!("grouped-query, {} heads of {}, {} for keys and values", a.heads, a.head_dim, a.kv_heads)
        }
        Attention::Mla(a) => {
            let queries = a.q_lora.map_or(String::new(), |n| format!("{n} (queries) and "));
            format!(
                "multi-head latent, {} heads of {}+{} and {}, latents {queries}{} (keys, values)",
                a.heads, a.nope, a.rope, a.v, a.kv_lora
            )
        }
    }
}

fn sparse_attention(arch: &Arch, dsa: &Dsa) -> String {
    let full = dsa.layers.iter().take(arch.layers).filter(|k| **k == IndexerKind::Full).count();
    format!(
        "the best {} keys, by {} indexer heads of {}; {full} of {} layers choose, the others share",
        dsa.topk, dsa.heads, dsa.head_dim, arch.layers
    )
}

/// Layers that see only the latest positions.
fn windows(arch: &Arch) -> Option<String> {
    let windows: Vec<usize> = (0..arch.layers).filter_map(|l| arch.window_of(l)).collect();
    let widest = windows.iter().max()?;
    Some(format!(
        "{} of {} layers see the latest {} positions",
        windows.len(),
        arch.layers,
        grouped(*widest as u64)
    ))
}

/// Dense, mixture and multi-token-prediction layers.
fn census(arch: &Arch) -> (usize, usize, usize) {
    let moe = arch.ffn.iter().take(arch.layers).filter(|f| **f == Ffn::Moe).count();
    (arch.layers.saturating_sub(moe), moe, arch.mtp_layers)
}

fn facts(catalog: &Catalog) -> Vec<(String, String)> {
    let arch = &catalog.arch;
    let p = catalog.parameters();
    let (dense, moe, mtp) = census(arch);
    let mut rows = vec![("", format!("{} ({})", catalog.name, catalog.source.display()))];
    rows.push(("format", catalog.format.to_string()));
    rows.push(("architecture", arch.family.to_string()));
    rows.push(("parameters", format!("{} total, {} active per token", short(p.total), short(p.active))));
    rows.push(("layers", format!("{dense} dense, {moe} mixture, {mtp} multi-token prediction")));
    rows.push(("width", format!("{}, vocabulary {}", arch.hidden, grouped(arch.vocab as u64))));
    rows.push(("attention", attention(arch)));
    rows.extend(windows(arch).map(|w| ("windows", w)));
    if let Some(dsa) = &arch.dsa {
        rows.push(("sparse attention", sparse_attention(arch, dsa)));
    }
    if let Some(m) = &arch.moe {
        let shared = m.shared_width.map_or(String::new(), |w| format!(", one shared of {w}"));
        rows.push(("experts", format!("{} of width {}, {} per token{shared}", m.experts, m.width, m.top_k)));
    }
    if arch.context_max > 0 {
        rows.push(("made for", format!("{} positions", grouped(arch.context_max as u64))));
    }
    let (source, template) = tokenizer(catalog);
    let template = if template { "with a chat template" } else { "no chat template" };
    rows.push(("tokenizer", format!("{source}, {template}")));
    rows.push(("fingerprint", hex(&catalog.fingerprint)));
    rows.into_iter().map(|(l, v)| (l.to_string(), v)).collect()
}

fn to_json(catalog: &Catalog) -> Value {
    let arch = &catalog.arch;
    let p = catalog.parameters();
    let (dense, moe, mtp) = census(arch);
    let (source, template) = tokenizer(catalog);
    json!({
        "model": catalog.source.display().to_string(),
        "name": catalog.name,
        "format": catalog.format,
        "architecture": arch.family,
        "files": files_json(&catalog.files),
        "missing": [],
        "ignored": catalog.ignored,
        "parameters_total": p.total,
        "parameters_active": p.active,
        "layers_dense": dense,
        "layers_moe": moe,
        "layers_mtp": mtp,
        "hidden": arch.hidden,
        "vocab": arch.vocab,
        "context_max": arch.context_max,
        "attention": attention(arch),
        "windows": windows(arch),
        "sparse_attention": arch.dsa.as_ref().map(|dsa| sparse_attention(arch, dsa)),
        "experts_per_layer": arch.moe.as_ref().map_or(0, |m| m.experts),
        "experts_per_token": arch.moe.as_ref().map_or(0, |m| m.top_k),
        "unclaimed": catalog.unclaimed.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        "tokenizer": source,
        "chat_template": template,
        "fingerprint": hex(&catalog.fingerprint),
        "problem": null,
    })
}
