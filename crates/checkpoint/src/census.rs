//! The census: every stored tensor gets its role, and every layer must have exactly the tensors that the
//! configuration asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::arch::{Arch, Ffn};
use crate::catalog::{Role, Tensor, TensorKey};
use crate::error::{OpenError, list, quote};
use crate::expert_layer::ExpertLayer;
use crate::experts::{self, Found};
use crate::families::names::{Meaning, Names};
use crate::judge::Judge;
use crate::wanted::{self, Kind, Wanted};

/// The tensors of a checkpoint by what they are for.
pub(crate) struct Census {
    pub tensors: BTreeMap<TensorKey, Tensor>,
    pub experts: Vec<ExpertLayer>,
    pub unclaimed: Vec<Tensor>,
}

/// Gives every tensor its role. Layers for multi-token prediction of which nothing is stored are taken out of `arch`,
/// and `arch.tied_embeddings` is settled; `tied` is what the configuration says about it.
///
/// # Errors
/// [`OpenError::Disagree`], naming the tensor and what both sides have.
pub(crate) fn take(
    path: &Path,
    arch: &mut Arch,
    names: &Names,
    stored: Vec<Tensor>,
    tied: Option<bool>,
) -> Result<Census, OpenError> {
    let mut sorted = sort(path, names, stored)?;
    drop_absent_mtp(arch, &sorted);
    let judge = Judge { path, arch, names, summary: summary(arch, &sorted) };
    let mut tensors = BTreeMap::new();
    judge.collect(None, wanted::globals(judge.arch), &mut sorted.tensors, &mut tensors)?;
    for layer in 0..judge.arch.layers_stored() {
        let has = |role| sorted.tensors.contains_key(&TensorKey { layer: Some(layer), role });
        let wanted = wanted::in_layer(judge.arch, layer, &has);
        judge.collect(Some(layer), wanted, &mut sorted.tensors, &mut tensors)?;
        if tensors.contains_key(&TensorKey { layer: Some(layer), role: Role::AttnKB }) {
            // Some files carry the undivided matrix as well.
            sorted
                .unclaimed
                .extend(sorted.tensors.remove(&TensorKey { layer: Some(layer), role: Role::AttnKvB }));
        }
    }
    let experts = judge.experts(&mut sorted)?;
    judge.no_leftovers(&sorted)?;
    let summary = judge.summary;
    settle_tied(path, arch, names, &mut tensors, &mut sorted.unclaimed, tied, summary)?;
    Ok(Census { tensors, experts, unclaimed: sorted.unclaimed })
}

/// Stored tensors by the meaning of their names.
struct Sorted {
    tensors: BTreeMap<TensorKey, Tensor>,
    experts: BTreeMap<usize, Found>,
    unclaimed: Vec<Tensor>,
    unknown: Vec<String>,
}

fn sort(path: &Path, names: &Names, stored: Vec<Tensor>) -> Result<Sorted, OpenError> {
    let mut out = Sorted {
        tensors: BTreeMap::new(),
        experts: BTreeMap::new(),
        unclaimed: Vec::new(),
        unknown: Vec::new(),
    };
    for tensor in stored {
        let again = match names.meaning(&tensor.name) {
            Meaning::Tensor(key) => out.tensors.insert(key, tensor),
            Meaning::Expert { layer, expert, part } => {
                out.experts.entry(layer).or_default().put_one(expert, part, tensor)
            }
            Meaning::Stacked { layer, stack } => {
                out.experts.entry(layer).or_default().put_stack(stack, tensor)
            }
            Meaning::Buffer => {
                out.unclaimed.push(tensor);
                None
            }
            Meaning::Unknown => {
                out.unknown.push(tensor.name);
                None
            }
        };
        if let Some(first) = again {
            return Err(OpenError::Duplicate {
                path: path.to_owned(),
                what: "tensor",
                name: quote(&first.name),
                place: "under another spelling of the same name".to_owned(),
            });
        }
    }
    Ok(out)
}

impl Sorted {
    fn layers(&self) -> BTreeSet<usize> {
        self.tensors.keys().filter_map(|k| k.layer).chain(self.experts.keys().copied()).collect()
    }
}

/// Weights are often published without the layers for multi-token prediction that `config.json` still counts.
fn drop_absent_mtp(arch: &mut Arch, sorted: &Sorted) {
    let stored = sorted.layers();
    while arch.mtp_layers > 0 && !stored.contains(&(arch.layers + arch.mtp_layers - 1)) {
        arch.mtp_layers -= 1;
        arch.ffn.pop();
        arch.views.pop();
        if let Some(dsa) = &mut arch.dsa {
            dsa.layers.pop();
        }
    }
}

/// Layers and experts by the configuration and by the weights.
fn summary(arch: &Arch, sorted: &Sorted) -> String {
    let moe = arch.ffn.iter().filter(|f| **f == Ffn::Moe).count();
    let experts = arch.moe.as_ref().map_or(0, |m| m.experts);
    let stored = sorted.layers();
    let stored_experts = sorted.experts.values().map(Found::len).max().unwrap_or(0);
    format!(
        "by the config {} + {} prediction layers, {moe} of them with {experts} experts; in the weights {} layers, {} \
         of them with up to {stored_experts} experts",
        arch.layers,
        arch.mtp_layers,
        stored.len(),
        sorted.experts.len(),
    )
}

impl Judge<'_> {
    /// Moves the wanted tensors of one layer from `from` to `to`.
    fn collect(
        &self,
        layer: Option<usize>,
        wanted: Vec<Wanted>,
        from: &mut BTreeMap<TensorKey, Tensor>,
        to: &mut BTreeMap<TensorKey, Tensor>,
    ) -> Result<(), OpenError> {
        for w in wanted {
            let key = TensorKey { layer, role: w.role };
            let Some(tensor) = from.remove(&key) else {
                if w.kind == Kind::OptionalMatrix {
                    continue;
                }
                return Err(self.disagree(
                    &self.names.spell(key),
                    format!("shape {:?}", w.shape),
                    "no such tensor",
                ));
            };
            self.check_shape(&tensor, &w.shape)?;
            if w.kind == Kind::Float && !tensor.dtype.is_plain_float() {
                let found = format!("{}", tensor.dtype);
                return Err(self.disagree(
                    &tensor.name,
                    "one of F32, F16, BF16 for a norm, bias or router",
                    found,
                ));
            }
            to.insert(key, tensor);
        }
        Ok(())
    }

    fn experts(&self, sorted: &mut Sorted) -> Result<Vec<ExpertLayer>, OpenError> {
        let mut out = Vec::new();
        for (layer, ffn) in self.arch.ffn.iter().enumerate() {
            if let (Ffn::Moe, Some(moe)) = (ffn, &self.arch.moe) {
                let found = sorted.experts.remove(&layer).unwrap_or_default();
                out.push(experts::assemble(self, moe, layer, found)?);
            }
        }
        Ok(out)
    }

    /// Nothing may be left: a tensor that is not understood would be missing from the computation.
    fn no_leftovers(&self, sorted: &Sorted) -> Result<(), OpenError> {
        let mut left: Vec<&str> = sorted.tensors.values().map(|t| t.name.as_str()).collect();
        left.extend(sorted.experts.values().flat_map(Found::names));
        left.extend(sorted.unknown.iter().map(String::as_str));
        if left.is_empty() {
            return Ok(());
        }
        left.sort_unstable();
        Err(OpenError::Disagree {
            path: self.path.to_owned(),
            tensor: "unexpected tensors".to_owned(),
            expected: format!("only tensors that this {} model uses", self.arch.family),
            found: list(left.into_iter()),
            census: self.summary.clone(),
        })
    }
}

/// The output matrix is the embedding when the configuration says so, or when it says nothing and there is no other.
fn settle_tied(
    path: &Path,
    arch: &mut Arch,
    names: &Names,
    tensors: &mut BTreeMap<TensorKey, Tensor>,
    unclaimed: &mut Vec<Tensor>,
    tied: Option<bool>,
    census: String,
) -> Result<(), OpenError> {
    let key = TensorKey { layer: None, role: Role::Output };
    arch.tied_embeddings = tied.unwrap_or(!tensors.contains_key(&key));
    if arch.tied_embeddings {
        // Some checkpoints store the tied matrix twice.
        unclaimed.extend(tensors.remove(&key));
    } else if !tensors.contains_key(&key) {
        return Err(OpenError::Disagree {
            path: path.to_owned(),
            tensor: format!("tensor `{}`", names.spell(key)),
            expected: "it, since tie_word_embeddings is false".to_owned(),
            found: "no such tensor".to_owned(),
            census,
        });
    }
    Ok(())
}
