//! A model that cannot be opened: what its headers say all the same.

use std::collections::{BTreeMap, BTreeSet};

use calypte_engine::checkpoint::{Headers, MissingShard, OpenError};
use serde_json::{Value, json};

use super::{Listed, Report, file_name, files_json, files_section, section, sums_json, sums_text};
use crate::output::{grouped, table};

/// All that is known without understanding the model; `problem` is why it cannot be opened.
pub(super) fn report(headers: &Headers, problem: &OpenError) -> Report {
    let tensors: Vec<Listed> = headers
        .tensors
        .iter()
        .map(|t| Listed {
            name: t.name.clone(),
            part: t.part(),
            dtype: t.dtype.clone(),
            shape: t.shape.clone(),
            file: file_name(&headers.files, t.extent.file.0),
            offset: t.extent.offset,
            bytes: t.extent.len,
        })
        .collect();
    let mut text = table(&facts(headers));
    text.push_str(&files_section(&headers.files));
    text.push_str(&section("Missing files", headers.missing.iter().map(missing_row)));
    text.push_str(&section(
        "Files with a fault",
        headers.problems.iter().map(|p| (String::new(), p.to_string())),
    ));
    text.push_str(&sums_text(&tensors));
    text.push_str(&section("Metadata", headers.metadata.iter().cloned()));
    let ignored = headers.ignored.iter().map(|name| (name.clone(), "not part of the model".to_string()));
    text.push_str(&section("Other weight files beside it", ignored));
    let mut json = to_json(headers, problem);
    sums_json(&tensors, &mut json);
    Report { text, json, tensors }
}

fn missing_row(m: &MissingShard) -> (String, String) {
    let tensors =
        m.tensors.map_or_else(|| "tensors unknown".to_string(), |n| format!("{} tensors", grouped(n as u64)));
    (m.name.clone(), tensors)
}

/// Layers by their numbers, and those with routed experts, as far as names tell.
fn census(headers: &Headers) -> (usize, usize) {
    let (mut layers, mut moe) = (BTreeSet::new(), BTreeSet::new());
    for t in &headers.tensors {
        let Some(layer) = t.layer() else { continue };
        layers.insert(layer);
        if t.part() == "routed experts" {
            moe.insert(layer);
        }
    }
    (layers.len(), moe.len())
}

fn architecture(headers: &Headers) -> String {
    headers.architecture.clone().unwrap_or_else(|| "not said".to_string())
}

fn facts(headers: &Headers) -> Vec<(String, String)> {
    let (layers, moe) = census(headers);
    let rows = [
        ("", format!("{}: cannot be run", headers.source.display())),
        ("format", headers.format.to_string()),
        ("architecture", architecture(headers)),
        ("tensors", grouped(headers.tensors.len() as u64)),
        ("layers", format!("{layers} in the files that are there, {moe} of them with routed experts")),
    ];
    rows.into_iter().map(|(l, v)| (l.to_string(), v)).collect()
}

fn to_json(headers: &Headers, problem: &OpenError) -> Value {
    let (layers, moe) = census(headers);
    let metadata: BTreeMap<&str, &str> =
        headers.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let missing = |m: &MissingShard| json!({ "name": m.name, "tensors": m.tensors });
    json!({
        "model": headers.source.display().to_string(),
        "format": headers.format,
        "architecture": headers.architecture,
        "files": files_json(&headers.files),
        "missing": headers.missing.iter().map(missing).collect::<Vec<_>>(),
        "ignored": headers.ignored,
        "faults": headers.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "layers_seen": layers,
        "layers_seen_moe": moe,
        "metadata": metadata,
        "problem": problem.to_string(),
    })
}
