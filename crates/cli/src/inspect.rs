//! `calypte inspect`: what a model file holds. Reads headers only.

use std::collections::BTreeMap;

use calypte_engine::checkpoint::arch::{Arch, Attention, Dsa, Ffn, IndexerKind};
use calypte_engine::checkpoint::{self, Catalog, ExpertLayer, Role, Tensor, TokenizerSource};
use calypte_engine::size::human;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::exit::Failure;
use crate::loading::headers;
use crate::output::{Out, grouped, hex, short, table};

/// Prints what the headers say.
pub fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let catalog = headers(args.model.as_deref())?;
    let listed = Listed::all(&catalog);
    let mut out = Out::new();
    if args.json {
        let mut object = to_json(&catalog, &listed);
        if args.tensors {
            object["tensors"] = listed.iter().map(|t| t.to_json(&catalog)).collect();
        }
        return out.line(&object.to_string());
    }
    out.text(&to_text(&catalog, &listed))?;
    if args.tensors {
        out.text("\nTensors: type, shape, file, offset, bytes, name\n")?;
        listed.iter().try_for_each(|t| out.line(&t.to_line(&catalog)))?;
    }
    Ok(())
}

/// One stored tensor; of experts, which may be stored stacked, one matrix of one expert.
struct Listed {
    name: String,
    group: &'static str,
    dtype: String,
    shape: Vec<usize>,
    file: u32,
    offset: u64,
    bytes: u64,
}

impl Listed {
    fn all(catalog: &Catalog) -> Vec<Listed> {
        let layers = catalog.arch.layers;
        let of_key = |(key, t): (&checkpoint::TensorKey, &Tensor)| {
            let mtp = key.layer.is_some_and(|l| l >= layers);
            Listed::tensor(t, if mtp { "multi-token prediction" } else { group(key.role) })
        };
        let mut out: Vec<Listed> = catalog.tensors.iter().map(of_key).collect();
        for layer in &catalog.experts {
            let mtp = layer.layer >= layers;
            out.extend(Listed::experts(layer, if mtp { "multi-token prediction" } else { "routed experts" }));
        }
        out.extend(catalog.unclaimed.iter().map(|t| Listed::tensor(t, "unclaimed")));
        out.sort_by_key(|t| (t.file, t.offset));
        out
    }

    fn tensor(t: &Tensor, group: &'static str) -> Listed {
        Listed {
            name: t.name.clone(),
            group,
            dtype: t.dtype.name().to_string(),
            shape: t.shape.clone(),
            file: t.extent.file.0,
            offset: t.extent.offset,
            bytes: t.extent.len,
        }
    }

    fn experts(layer: &ExpertLayer, group: &'static str) -> impl Iterator<Item = Listed> {
        let matrices = [("gate", layer.gate), ("up", layer.up), ("down", layer.down)];
        layer.extents.iter().enumerate().flat_map(move |(expert, extents)| {
            extents.iter().zip(matrices).map(move |(extent, (what, matrix))| Listed {
                name: format!("layer {} expert {expert} {what}", layer.layer),
                group,
                dtype: matrix.dtype.name().to_string(),
                shape: vec![matrix.rows, matrix.cols],
                file: extent.file.0,
                offset: extent.offset,
                bytes: extent.len,
            })
        })
    }

    fn file_name(&self, catalog: &Catalog) -> String {
        let file = catalog.files.get(self.file as usize);
        let name = file.and_then(|f| f.path.file_name());
        name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    fn to_line(&self, catalog: &Catalog) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!(
            "{:6} {:16} {} {:>12} {:>12}  {}",
            self.dtype,
            format!("[{}]", shape.join(", ")),
            self.file_name(catalog),
            self.offset,
            self.bytes,
            self.name
        )
    }

    fn to_json(&self, catalog: &Catalog) -> Value {
        json!({
            "name": self.name,
            "group": self.group,
            "dtype": self.dtype,
            "shape": self.shape,
            "file": self.file_name(catalog),
            "offset": self.offset,
            "bytes": self.bytes,
        })
    }
}

/// What part of a model a tensor belongs to.
fn group(role: Role) -> &'static str {
    use Role::*;
    match role {
        TokenEmbedding | Output | OutputNorm => "embedding and output",
        AttnNorm | AttnQ | AttnK | AttnV | AttnOut | AttnQNorm | AttnKNorm | AttnQA | AttnQANorm | AttnQB
        | AttnKvA | AttnKvANorm | AttnKvB | AttnKB | AttnVB => "attention",
        IndexerQB | IndexerK | IndexerKNorm | IndexerKNormBias | IndexerWeights => "indexer",
        FfnNorm | FfnGate | FfnUp | FfnDown => "feed-forward",
        Router | RouterBias => "routers",
        SharedGate | SharedUp | SharedDown => "shared experts",
        MtpProjection | MtpEmbeddingNorm | MtpHiddenNorm | MtpOutputNorm | MtpEmbedding | MtpOutput => {
            "multi-token prediction"
        }
    }
}

/// Tensors and bytes by a property.
fn sums<'a>(listed: &'a [Listed], key: impl Fn(&'a Listed) -> &'a str) -> BTreeMap<&'a str, (u64, u64)> {
    let mut out = BTreeMap::new();
    for t in listed {
        let (count, bytes) = out.entry(key(t)).or_insert((0, 0));
        *count += 1;
        *bytes += t.bytes;
    }
    out
}

fn tokenizer(catalog: &Catalog) -> (String, bool) {
    match &catalog.tokenizer {
        TokenizerSource::HuggingFace { chat_template, .. } => {
            ("tokenizer.json".to_string(), chat_template.is_some())
        }
        TokenizerSource::Gguf(g) => {
            let pre = g.pre.as_ref().map_or(String::new(), |p| format!(", {p}"));
            (
                format!("in the file ({}{pre}, {} tokens)", g.model, grouped(g.tokens.len() as u64)),
                g.chat_template.is_some(),
            )
        }
        TokenizerSource::Missing => ("none: token ids only".to_string(), false),
    }
}

fn attention(catalog: &Catalog) -> String {
    let arch = &catalog.arch;
    match &arch.attention {
        Attention::Gqa { heads, kv_heads, head_dim, .. } => {
            format!("grouped-query, {heads} heads of {head_dim}, {kv_heads} for keys and values")
        }
        Attention::Mla { heads, q_lora, kv_lora, nope, rope, v, .. } => format!(
            "multi-head latent, {heads} heads of {nope}+{rope} and {v}, latents {q_lora} (queries) and {kv_lora} (keys, values)"
        ),
    }
}

fn sparse_attention(arch: &Arch, dsa: &Dsa) -> String {
    let full = dsa.layers.iter().take(arch.layers).filter(|k| **k == IndexerKind::Full).count();
    format!(
        "the best {} keys, by {} indexer heads of {}; {full} of {} layers choose, the others share",
        dsa.topk, dsa.heads, dsa.head_dim, arch.layers
    )
}

/// Dense, mixture and multi-token-prediction layers.
fn census(catalog: &Catalog) -> (usize, usize, usize) {
    let trunk = catalog.arch.ffn.iter().take(catalog.arch.layers);
    let moe = trunk.filter(|f| **f == Ffn::Moe).count();
    (catalog.arch.layers - moe, moe, catalog.arch.mtp_layers)
}

fn to_text(catalog: &Catalog, listed: &[Listed]) -> String {
    let arch = &catalog.arch;
    let p = catalog.parameters();
    let (dense, moe, mtp) = census(catalog);
    let mut rows = vec![("", format!("{} ({})", catalog.name, catalog.source.display()))];
    rows.push(("format", catalog.format.to_string()));
    rows.push(("architecture", arch.family.to_string()));
    rows.push(("parameters", format!("{} total, {} active per token", short(p.total), short(p.active))));
    rows.push(("layers", format!("{dense} dense, {moe} mixture, {mtp} multi-token prediction")));
    rows.push(("width", format!("{}, vocabulary {}", arch.hidden, grouped(arch.vocab as u64))));
    rows.push(("attention", attention(catalog)));
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
    let rows: Vec<(String, String)> = rows.into_iter().map(|(l, v)| (l.to_string(), v)).collect();
    let mut out = table(&rows);
    let mut section = |title: &str, entries: &mut dyn Iterator<Item = (String, String)>| {
        out.push_str(&format!("\n{title}\n{}", table(&entries.collect::<Vec<_>>())));
    };
    let file = |f: &checkpoint::WeightFile| (f.path.display().to_string(), human(f.size_bytes));
    section("Files", &mut catalog.files.iter().map(file));
    let counted = |(what, (count, bytes)): (&str, (u64, u64))| {
        (what.to_string(), format!("{} tensors, {}", grouped(count), human(bytes)))
    };
    section("Types", &mut sums(listed, |t| &t.dtype).into_iter().map(counted));
    section("Parts", &mut sums(listed, |t| t.group).into_iter().map(counted));
    out
}

fn to_json(catalog: &Catalog, listed: &[Listed]) -> Value {
    let arch = &catalog.arch;
    let p = catalog.parameters();
    let (dense, moe, mtp) = census(catalog);
    let (source, template) = tokenizer(catalog);
    let object = |sums: BTreeMap<&str, (u64, u64)>| -> Value {
        let entry = |(what, (count, bytes)): (&str, (u64, u64))| {
            (what.to_string(), json!({ "tensors": count, "bytes": bytes }))
        };
        Value::Object(sums.into_iter().map(entry).collect())
    };
    json!({
        "model": catalog.source.display().to_string(),
        "name": catalog.name,
        "format": catalog.format,
        "architecture": arch.family,
        "files": catalog.files.iter()
            .map(|f| json!({ "path": f.path.display().to_string(), "bytes": f.size_bytes }))
            .collect::<Vec<_>>(),
        "parameters_total": p.total,
        "parameters_active": p.active,
        "layers_dense": dense,
        "layers_moe": moe,
        "layers_mtp": mtp,
        "hidden": arch.hidden,
        "vocab": arch.vocab,
        "context_max": arch.context_max,
        "attention": attention(catalog),
        "sparse_attention": arch.dsa.as_ref().map(|dsa| sparse_attention(arch, dsa)),
        "experts_per_layer": arch.moe.as_ref().map_or(0, |m| m.experts),
        "experts_per_token": arch.moe.as_ref().map_or(0, |m| m.top_k),
        "dtypes": object(sums(listed, |t| &t.dtype)),
        "parts": object(sums(listed, |t| t.group)),
        "unclaimed": catalog.unclaimed.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        "tokenizer": source,
        "chat_template": template,
        "fingerprint": hex(&catalog.fingerprint),
    })
}
