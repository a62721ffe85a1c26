//! `calypte inspect`: what the files of a model hold. Reads headers only, also of files that cannot be run.

mod headers;
mod model;

use std::collections::BTreeMap;

use calypte_engine::checkpoint::{self, WeightFile};
use calypte_engine::size::human;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::bundled::or_bundled;
use crate::exit::Failure;
use crate::output::{Out, grouped, table};

/// Prints what the headers say. When the model cannot be opened, prints what can be known all the same, and fails.
pub fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let path = or_bundled(args.model.as_deref())?;
    let problem = match checkpoint::open(&path) {
        Ok(catalog) => return model::report(&catalog).print(args),
        Err(problem) => problem,
    };
    if let Ok(found) = checkpoint::headers(&path) {
        headers::report(&found, &problem).print(args)?;
    }
    Err(Failure::Engine(problem.into()))
}

/// What is printed, as text and as JSON.
struct Report {
    text: String,
    json: Value,
    tensors: Vec<Listed>,
}

impl Report {
    fn print(mut self, args: &InspectArgs) -> Result<(), Failure> {
        let mut out = Out::new();
        if args.json {
            if args.tensors {
                self.json["tensors"] = self.tensors.iter().map(Listed::to_json).collect();
            }
            return out.line(&self.json.to_string());
        }
        out.text(&self.text)?;
        if args.tensors {
            // In one piece: a write for each of a hundred thousand lines takes longer than all else.
            let lines: String = self.tensors.iter().map(|t| format!("{}\n", t.to_line())).collect();
            out.text(&format!("\nTensors: type, shape, file, offset, bytes, name\n{lines}"))?;
        }
        Ok(())
    }
}

/// One stored tensor; of experts, which may be stored stacked, what is read for one expert.
struct Listed {
    name: String,
    part: &'static str,
    dtype: String,
    shape: Vec<usize>,
    file: String,
    offset: u64,
    bytes: u64,
}

impl Listed {
    fn to_line(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let shape = format!("[{}]", shape.join(", "));
        let Listed { dtype, file, offset, bytes, name, .. } = self;
        format!("{dtype:6} {shape:16} {file} {offset:>12} {bytes:>12}  {name}")
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "group": self.part,
            "dtype": self.dtype,
            "shape": self.shape,
            "file": self.file,
            "offset": self.offset,
            "bytes": self.bytes,
        })
    }
}

/// The name of the file with this number.
fn file_name(files: &[WeightFile], number: u32) -> String {
    let name = files.get(number as usize).and_then(|f| f.path.file_name());
    name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

fn files_json(files: &[WeightFile]) -> Value {
    let file = |f: &WeightFile| json!({ "path": f.path.display().to_string(), "bytes": f.size_bytes });
    files.iter().map(file).collect()
}

/// A title and lines of two columns.
fn section(title: &str, rows: impl IntoIterator<Item = (String, String)>) -> String {
    let rows: Vec<(String, String)> = rows.into_iter().collect();
    if rows.is_empty() { String::new() } else { format!("\n{title}\n{}", table(&rows)) }
}

fn files_section(files: &[WeightFile]) -> String {
    section("Files", files.iter().map(|f| (f.path.display().to_string(), human(f.size_bytes))))
}

/// Tensors and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    tensors: u64,
    bytes: u64,
}

impl Sum {
    fn in_words(self) -> String {
        format!("{} tensors, {}", grouped(self.tensors), human(self.bytes))
    }
}

/// Tensors and bytes by a property.
fn sums<'a, K: Ord>(listed: &'a [Listed], key: impl Fn(&'a Listed) -> K) -> BTreeMap<K, Sum> {
    let mut out: BTreeMap<K, Sum> = BTreeMap::new();
    for t in listed {
        let sum = out.entry(key(t)).or_default();
        sum.tensors += 1;
        // A header may claim anything; a sum that does not fit is told as the largest that does.
        sum.bytes = sum.bytes.saturating_add(t.bytes);
    }
    out
}

/// Types, parts, and which part is stored in which type.
fn sums_text(listed: &[Listed]) -> String {
    let types = sums(listed, |t| t.dtype.as_str()).into_iter();
    let both = sums(listed, |t| (t.part, t.dtype.as_str())).into_iter();
    let mut out = section("Types", types.map(|(what, sum)| (what.to_string(), sum.in_words())));
    let row = |((part, dtype), sum): ((&str, &str), Sum)| (format!("{part}, {dtype}"), sum.in_words());
    out.push_str(&section("Parts and their types", both.map(row)));
    out
}

/// [`sums_text`] for programs: the fields `dtypes`, `parts` and `quantisation`.
fn sums_json(listed: &[Listed], object: &mut Value) {
    let by = |sums: BTreeMap<&str, Sum>| -> Value {
        let entry =
            |(what, s): (&str, Sum)| (what.to_string(), json!({ "tensors": s.tensors, "bytes": s.bytes }));
        Value::Object(sums.into_iter().map(entry).collect())
    };
    object["dtypes"] = by(sums(listed, |t| t.dtype.as_str()));
    object["parts"] = by(sums(listed, |t| t.part));
    let both = sums(listed, |t| (t.part, t.dtype.as_str())).into_iter();
    let row = |((part, dtype), s): ((&str, &str), Sum)| json!({ "part": part, "dtype": dtype, "tensors": s.tensors, "bytes": s.bytes });
    object["quantisation"] = both.map(row).collect();
}
