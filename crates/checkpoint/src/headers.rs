//! What the headers of a model's files say, whether or not the model can be run: for looking at files that are
//! incomplete, damaged, or of a kind that is not supported.

use std::path::{Path, PathBuf};

use calypte_disk::{Extent, FileId};

use crate::catalog::WeightFile;
use crate::error::{MissingShard, OpenError, quote};
use crate::gguf::Gguf;
use crate::gguf_split::{self, file_name};
use crate::gguf_value::Value;
use crate::hf;
use crate::hf_config::HfConfig;
use crate::layout::check_extents;
use crate::open::{Target, file_names, siblings, target};
use crate::safetensors;
use crate::stored::Stored;

/// The headers of the files that are there.
#[derive(Debug)]
pub struct Headers {
    /// Directory or file that was opened.
    pub source: PathBuf,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// What the model calls its architecture.
    pub architecture: Option<String>,
    /// The weight files that are there and whose headers can be read; an extent's file is an index into this list.
    pub files: Vec<WeightFile>,
    /// Files of the model that are not there.
    pub missing: Vec<MissingShard>,
    /// Weight files beside them that are not part of the model.
    pub ignored: Vec<String>,
    /// Keys and values as a person may read them: long ones are cut, and of arrays only the length is told.
    pub metadata: Vec<(String, String)>,
    /// The tensors in those files.
    pub tensors: Vec<HeaderTensor>,
    /// What is wrong with single files.
    pub problems: Vec<OpenError>,
}

/// A tensor of any type, known or not.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderTensor {
    /// Its name in the file.
    pub name: String,
    /// Its element type as the format calls it.
    pub dtype: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Where its bytes are; of a file that is cut short, where they should be.
    pub extent: Extent,
}

/// What a name says, in any family's spelling. The first line that fits counts.
const PARTS: [(&str, &[&str]); 9] = [
    ("shared experts", &["shexp", "shared_expert"]),
    ("routers", &["ffn_gate_inp", "exp_probs_b", "mlp.gate.", "moe.gate.", "router"]),
    ("routed experts", &["exps", ".experts."]),
    ("indexer", &["indexer"]),
    ("multi-token prediction", &["nextn", "eh_proj", "enorm", "hnorm", "mtp"]),
    ("feed-forward", &["ffn", "mlp", "feed_forward", "post_attention_layernorm"]),
    ("attention", &["attn", "attention", "input_layernorm"]),
    ("embedding and output", &["embd", "embed", "lm_head", "output", "model.norm"]),
    ("other", &[""]),
];

impl HeaderTensor {
    fn new(t: &Stored) -> Self {
        HeaderTensor {
            name: t.name.clone(),
            dtype: t.ty.name().into_owned(),
            shape: t.shape.clone(),
            extent: t.extent,
        }
    }

    /// What part of a model it belongs to, as far as its name tells.
    pub fn part(&self) -> &'static str {
        let fits = |(_, words): &&(&str, &[&str])| words.iter().any(|w| self.name.contains(w));
        PARTS.iter().find(fits).map_or("other", |(part, _)| part)
    }

    /// The layer it is in, as far as its name tells.
    pub fn layer(&self) -> Option<usize> {
        let after = |prefix: &str| self.name.split_once(prefix).map(|(_, rest)| rest);
        let rest = after("blk.").or_else(|| after("layers.")).or_else(|| after("h."))?;
        rest.split('.').next()?.parse().ok()
    }
}

/// Reads the headers of the model at `path`, which may be anything that [`open`](crate::open) takes, or a single
/// safetensors file, or a directory of them without `config.json`. No weight is read.
///
/// # Errors
/// When no header at all can be read. What is wrong with some of several files is in [`Headers::problems`].
pub fn headers(path: &Path) -> Result<Headers, OpenError> {
    match target(path) {
        Ok(Target::Gguf(file)) => of_gguf(path, &file),
        Ok(Target::HuggingFace { dir, names }) => of_directory(path, &dir, &names),
        Err(error) => match (is_safetensors(path), path.is_dir()) {
            (true, _) => of_one_file(path),
            (false, true) => {
                let names = file_names(path)?;
                let any = names.iter().any(|n| is_safetensors(Path::new(n)));
                if any { of_directory(path, path, &names) } else { Err(error) }
            }
            (false, false) => Err(error),
        },
    }
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
}

impl Headers {
    fn new(source: &Path, format: &'static str) -> Self {
        Headers {
            source: source.to_owned(),
            format,
            architecture: None,
            files: Vec::new(),
            missing: Vec::new(),
            ignored: Vec::new(),
            metadata: Vec::new(),
            tensors: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Takes in the header of one file, or what is wrong with it.
    fn put(&mut self, header: Result<(WeightFile, Vec<Stored>), OpenError>) {
        match header {
            Ok((file, tensors)) => {
                self.problems.extend(check_extents(&file.path, &tensors, file.size_bytes).err());
                self.tensors.extend(tensors.iter().map(HeaderTensor::new));
                self.files.push(file);
            }
            Err(error) => self.problems.push(error),
        }
    }

    /// Where the next file goes in [`Headers::files`].
    fn next_file(&self) -> FileId {
        FileId(u32::try_from(self.files.len()).unwrap_or(u32::MAX))
    }

    /// An error when there is nothing but errors.
    fn unless_empty(mut self) -> Result<Headers, OpenError> {
        match self.problems.len() {
            0 => Ok(self),
            _ if self.files.is_empty() => Err(self.problems.swap_remove(0)),
            _ => Ok(self),
        }
    }
}

fn of_gguf(source: &Path, file: &Path) -> Result<Headers, OpenError> {
    let gathered = gguf_split::gather(file, || siblings(file))?;
    let mut out = Headers::new(source, "gguf");
    out.missing = gathered.missing();
    for part in gathered.parts() {
        let file = out.next_file();
        let renumbered = part.map(|mut part| {
            if out.architecture.is_none() {
                describe_gguf(&mut out, &part);
            }
            part.tensors.iter_mut().for_each(|t| t.extent.file = file);
            (part.weight_file(), part.tensors)
        });
        out.put(renumbered);
    }
    out.unless_empty()
}

/// The metadata of the first part that has an architecture: the others have only their numbers.
fn describe_gguf(out: &mut Headers, part: &Gguf) {
    if let Some(Value::Text(name)) = part.metadata.get("general.architecture") {
        out.architecture = Some(quote(name));
    }
    if out.architecture.is_some() || out.metadata.is_empty() {
        out.metadata = part.metadata.iter().map(|(k, v)| (quote(k), v.in_words())).collect();
    }
}

fn of_directory(source: &Path, dir: &Path, names: &[String]) -> Result<Headers, OpenError> {
    let mut out = Headers::new(source, "safetensors");
    describe_config(&mut out, dir, names);
    match hf::shards(dir, names) {
        Ok(shards) => {
            out.missing = shards.missing;
            out.ignored = shards.ignored;
            for shard in &shards.present {
                let header = safetensors::read_unchecked(&dir.join(shard), out.next_file());
                out.put(header);
            }
        }
        Err(error) => out.problems.push(error),
    }
    match out.metadata.is_empty() {
        true => out.unless_empty(),
        false => Ok(out),
    }
}

/// One file by itself; what is missing is told from the names beside it.
fn of_one_file(path: &Path) -> Result<Headers, OpenError> {
    let mut out = Headers::new(path, "safetensors");
    out.put(safetensors::read_unchecked(path, FileId(0)));
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file_name(path);
    if let Ok(shards) = file_names(dir).and_then(|names| hf::shards(dir, &names))
        && shards.present.contains(&name)
    {
        out.missing = shards.missing;
    }
    out.unless_empty()
}

/// What `config.json` says, as far as it can be read.
fn describe_config(out: &mut Headers, dir: &Path, names: &[String]) {
    if !names.iter().any(|n| n == hf::CONFIG) {
        return;
    }
    let path = dir.join(hf::CONFIG);
    match HfConfig::read(&path) {
        Ok(config) => {
            let classes = config.texts_opt("architectures").ok().flatten().unwrap_or_default();
            let kind = config.text_opt("model_type").ok().flatten().or(classes.first().copied());
            out.architecture = kind.map(quote);
            out.metadata = config.entries().map(|(k, v)| (quote(k), quote(&v.to_string()))).collect();
        }
        Err(error) => out.problems.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, part: &str, layer: Option<usize>) {
        let extent = Extent { file: FileId(0), offset: 0, len: 0 };
        let t = HeaderTensor { name: name.to_owned(), dtype: String::new(), shape: Vec::new(), extent };
        assert_eq!((t.part(), t.layer()), (part, layer), "{name}");
    }

    #[test]
    fn parts_and_layers_by_name() {
        check("token_embd.weight", "embedding and output", None);
        check("output_norm.weight", "embedding and output", None);
        check("blk.3.attn_q.weight", "attention", Some(3));
        check("blk.3.ffn_gate_exps.weight", "routed experts", Some(3));
        check("blk.3.ffn_gate_shexp.weight", "shared experts", Some(3));
        check("blk.3.ffn_gate_inp.weight", "routers", Some(3));
        check("blk.92.nextn.eh_proj.weight", "multi-token prediction", Some(92));
        check("blk.1.indexer.attn_k.weight", "indexer", Some(1));
        check("model.layers.10.mlp.experts.5.down_proj.weight_scale_inv", "routed experts", Some(10));
        check("model.layers.10.mlp.gate.weight", "routers", Some(10));
        check("model.layers.10.mlp.gate_proj.weight", "feed-forward", Some(10));
        check("model.layers.10.self_attn.o_proj.weight", "attention", Some(10));
        check("model.layers.10.input_layernorm.weight", "attention", Some(10));
        check("lm_head.weight", "embedding and output", None);
        check("v.blk.0.ln1.weight", "other", Some(0));
    }
}
