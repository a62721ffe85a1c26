//! Values and scales that safetensors files store apart, joined to tensors with a [`Packing`].
//!
//! FP8: `X` of type F8_E4M3 with `X_scale_inv` (DeepSeek-V3 and its successors; despite the name it is multiplied) or
//! `X_scale` (compressed-tensors). MXFP4: `X_blocks` and `X_scales`, both bytes (gpt-oss), or `X_packed` and `X_scale`
//! (compressed-tensors, Kimi K3); the order of the nibbles is the same. INT4: `X_packed` of type I32 and `X_scale` of type
//! BF16, with `X_shape` that says nothing new (compressed-tensors, Kimi-K2-Thinking).

use std::collections::HashMap;
use std::path::Path;

use calypte_quant::DType;
use serde_json::{Map, Value};

use crate::catalog::{Fp8Scales, Packing, Tensor};
use crate::error::{OpenError, quote};
use crate::hf_config::HfConfig;
use crate::stored::{RawType, Stored, StoredType};

/// What follows the name of MXFP4 values in those of their blocks and of their exponents.
const MXFP4_PARTS: [(&str, &str); 2] = [("_blocks", "_scales"), ("_packed", "_scale")];
/// What follows the name of INT4 words in theirs and in that of their scales.
const INT4_PARTS: (&str, &str) = ("_packed", "_scale");
/// What follows the name of INT4 words in that of their unpacked shape, which that of the scales says as well.
const INT4_SHAPE: &str = "_shape";
/// What follows the name of INT4 words in those of tensors that would change their values.
const INT4_REFUSED: [&str; 2] = ["_zero_point", "_g_idx"];
/// Values that share an INT4 scale, and the words that they take.
const INT4_BLOCK: usize = 32;
const INT4_WORDS: usize = 4;
/// What is read of the format `pack-quantized`.
const INT4: &str = "symmetric int4 in groups of 32";
/// What follows the name of FP8 values in that of their scales.
const FP8_SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// Scales of activations and of cached keys and values, which nothing here is rounded by.
const UNUSED: [&str; 4] = [".input_scale", ".activation_scale", ".k_scale", ".v_scale"];
/// Values of an MXFP4 block, and the bytes that they take.
const MXFP4_BLOCK: usize = 32;
const MXFP4_BYTES: usize = 16;
/// Rows and columns that share an FP8 scale when the configuration does not say.
const FP8_BLOCK_DEFAULT: [usize; 2] = [128, 128];
const TODO: &str = "use a BF16, FP8, MXFP4 or INT4 checkpoint, or a GGUF file of the model";

/// The tensors of a checkpoint, and those that are not used.
pub(crate) struct Joined {
    pub tensors: Vec<Tensor>,
    pub unused: Vec<Tensor>,
}

/// Joins what belongs together. `file_of` tells which file a tensor is in, `skip` which tensors are buffers that nobody reads, whatever their type.
///
/// # Errors
/// [`OpenError::Unsupported`] for a kind of quantisation that is not read, [`OpenError::Disagree`] for values whose scales
/// are missing or of the wrong shape.
pub(crate) fn join<'a>(
    dir: &Path,
    config: &HfConfig,
    stored: Vec<Stored>,
    file_of: impl Fn(&Stored) -> &'a Path,
    skip: impl Fn(&str) -> bool,
) -> Result<Joined, OpenError> {
    let scheme = Scheme::of(config)?;
    let mut by_name: HashMap<String, Stored> = HashMap::with_capacity(stored.len());
    let mut order = Vec::with_capacity(stored.len());
    for tensor in stored {
        order.push(tensor.name.clone());
        by_name.insert(tensor.name.clone(), tensor);
    }
    // Scales first, so that what is left of them has no values.
    let mut scales: HashMap<String, Stored> = HashMap::new();
    for name in &order {
        let partner = partner_of(&by_name, name);
        if let Some((values, scale)) = partner.and_then(|p| Some((p, by_name.remove(name)?))) {
            scales.insert(values, scale);
        }
    }
    let mut out = Joined { tensors: Vec::new(), unused: Vec::new() };
    for name in order {
        let Some(tensor) = by_name.remove(&name) else { continue };
        let shape = scheme.int4 && name.ends_with(INT4_SHAPE);
        if shape || UNUSED.iter().any(|end| name.ends_with(end)) || (skip(&name) && !is_plain(&tensor)) {
            out.unused.extend(tensor.into_tensor(dir).ok());
            continue;
        }
        let file = file_of(&tensor);
        out.tensors.push(join_one(dir, &scheme, tensor, scales.remove(&name), file)?);
    }
    Ok(out)
}

/// A tensor of file `file`, and its scales if it has any.
fn join_one(
    dir: &Path,
    scheme: &Scheme,
    tensor: Stored,
    scale: Option<Stored>,
    file: &Path,
) -> Result<Tensor, OpenError> {
    let name = &tensor.name;
    let no_scales = |expected: String| Err(disagree(dir, name, expected, "no such tensor"));
    match (&tensor.ty, scale) {
        (StoredType::Raw(RawType::F8E4M3), Some(scale)) => fp8(dir, tensor, scale, scheme.fp8_block),
        (StoredType::Raw(RawType::F8E4M3), None) => {
            no_scales(format!("its scales, `{0}_scale_inv` or `{0}_scale`", quote(name)))
        }
        (StoredType::Raw(RawType::U8), Some(scale)) => mxfp4(dir, tensor, scale),
        (StoredType::Raw(RawType::I32), Some(scale)) if scheme.int4 => int4(dir, tensor, scale),
        (StoredType::Raw(RawType::I32), None) if scheme.int4 && name.ends_with(INT4_PARTS.0) => {
            let of = name.strip_suffix(INT4_PARTS.0).unwrap_or(name);
            no_scales(format!("its scales, `{}{}`", quote(of), INT4_PARTS.1))
        }
        _ if scheme.int4 && INT4_REFUSED.iter().any(|end| name.ends_with(end)) => {
            Err(OpenError::Unsupported {
                path: file.to_owned(),
                what: format!("tensor `{}` at byte {}", quote(name), tensor.extent.offset),
                expected: format!("{INT4}, which have none"),
                found: format!("{} {:?}", tensor.ty, tensor.shape),
                todo: TODO,
            })
        }
        _ => tensor.into_tensor(file),
    }
}

fn is_plain(tensor: &Stored) -> bool {
    matches!(tensor.ty, StoredType::Plain(_))
}

/// The name of the values that `name` has the scales of.
fn partner_of(by_name: &HashMap<String, Stored>, name: &str) -> Option<String> {
    let of_type = |values: &str, ty: RawType| {
        by_name.get(values).is_some_and(|t| t.ty == StoredType::Raw(ty)).then(|| values.to_owned())
    };
    let blocks = MXFP4_PARTS.iter().find_map(|(blocks, scales)| {
        of_type(&format!("{}{blocks}", name.strip_suffix(scales)?), RawType::U8)
    });
    if blocks.is_some() {
        return blocks;
    }
    let words = name.strip_suffix(INT4_PARTS.1).map(|of| format!("{of}{}", INT4_PARTS.0));
    if let Some(words) = words.and_then(|words| of_type(&words, RawType::I32)) {
        return Some(words);
    }
    FP8_SCALES.iter().find_map(|end| of_type(name.strip_suffix(end)?, RawType::F8E4M3))
}

/// What `quantization_config` says and the tensors do not.
struct Scheme {
    /// Rows and columns that share an FP8 scale.
    fp8_block: [usize; 2],
    /// Whether words of type I32 hold INT4 values.
    int4: bool,
}

impl Scheme {
    /// # Errors
    /// When a method, or a setting of one, is not read here.
    fn of(config: &HfConfig) -> Result<Scheme, OpenError> {
        const KEY: &str = "quantization_config";
        let mut scheme = Scheme { fp8_block: FP8_BLOCK_DEFAULT, int4: false };
        let Some(q) = config.object(KEY)? else { return Ok(scheme) };
        let block = match q.text_opt("quant_method")?.unwrap_or("") {
            "fp8" => q.get("weight_block_size").cloned(),
            "mxfp4" => None,
            "compressed-tensors" => match q.text_opt("format")? {
                Some("mxfp4-pack-quantized") => None,
                Some("pack-quantized") => {
                    check_int4(&q)?;
                    scheme.int4 = true;
                    None
                }
                Some("float-quantized" | "naive-quantized") | None => {
                    let groups = q.get("config_groups").and_then(Value::as_object);
                    let first = groups.and_then(|g| g.values().next());
                    first.and_then(|g| g.get("weights")).and_then(|w| w.get("block_structure")).cloned()
                }
                Some(_) => {
                    let expected = "float-quantized, mxfp4-pack-quantized or pack-quantized";
                    return Err(q.unsupported("format", expected, TODO));
                }
            },
            _ => return Err(q.unsupported("quant_method", "fp8, mxfp4 or compressed-tensors", TODO)),
        };
        let Some(block) = block.filter(|b| !b.is_null()) else { return Ok(scheme) };
        let number = |i: usize| block.get(i).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        match (number(0), number(1), block.get(2)) {
            (Some(rows), Some(cols), None) if rows > 0 && cols > 0 => scheme.fp8_block = [rows, cols],
            _ => return Err(config.wrong(KEY, "a block size of two positive numbers")),
        }
        Ok(scheme)
    }
}

/// The settings of INT4 weights: what they must be, and whether they are that where nothing is said.
fn int4_settings() -> [(&'static str, Value, bool); 5] {
    [
        ("num_bits", 4.into(), false),
        ("type", "int".into(), true),
        ("symmetric", true.into(), true),
        ("strategy", "group".into(), true),
        ("group_size", INT4_BLOCK.into(), false),
    ]
}

/// Whether all weights of a `pack-quantized` checkpoint are what [`INT4`] says.
///
/// # Errors
/// The first setting that is anything else.
fn check_int4(q: &HfConfig) -> Result<(), OpenError> {
    let (groups, transforms) = ("config_groups", "transform_config");
    if q.object(transforms)?.is_some() && q.get(transforms) != Some(&Value::Object(Map::new())) {
        return Err(q.unsupported(transforms, "no transformed weights", TODO));
    }
    let names = q.get(groups).and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let all = q.object(groups)?;
    let mut weights = 0;
    for name in names {
        let group = all.as_ref().map(|all| all.object(name)).transpose()?.flatten();
        let Some(settings) = group.map(|g| g.object("weights")).transpose()?.flatten() else { continue };
        for (key, want, by_default) in int4_settings() {
            if !settings.get(key).map_or(by_default, |found| *found == want) {
                return Err(settings.unsupported(key, &format!("{want} ({INT4})"), TODO));
            }
        }
        if settings.get("actorder").is_some_and(|v| *v != Value::Bool(false)) {
            return Err(settings.unsupported("actorder", "null: groups of neighbours", TODO));
        }
        weights += 1;
    }
    if weights == 0 { Err(q.wrong(groups, "a group with weights")) } else { Ok(()) }
}

fn fp8(dir: &Path, values: Stored, scale: Stored, block: [usize; 2]) -> Result<Tensor, OpenError> {
    let StoredType::Plain(dtype @ (DType::F32 | DType::F16 | DType::BF16)) = scale.ty else {
        return Err(disagree(dir, &scale.name, "scales of type F32, F16 or BF16", scale.ty.to_string()));
    };
    let (Some((&cols, outer)), scale_shape) = (values.shape.split_last(), scale.shape.as_slice()) else {
        return Err(disagree(dir, &values.name, "a matrix", "a single value"));
    };
    let (rows, stacked) = outer.split_last().map_or((1, &[][..]), |(r, s)| (*r, s));
    // Stacks of experts have stacks of scales.
    let of_one = scale_shape.strip_prefix(stacked).unwrap_or(scale_shape);
    let blocks = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
    let block = match of_one {
        [] | [1] => [rows, cols],
        [n] | [n, 1] if *n == rows && blocks != [rows, 1] => [1, cols],
        of_one if of_one == blocks => block,
        _ => {
            let expected = format!("shape {blocks:?} ({block:?} values each), [{rows}, 1] or [1]");
            return Err(disagree(dir, &scale.name, expected, format!("shape {of_one:?}")));
        }
    };
    let packing = Packing::Fp8(Fp8Scales { extent: scale.extent, dtype, block });
    Ok(Tensor { packing, ..Tensor::plain(values.name, DType::F8E4M3, values.shape, values.extent) })
}

fn mxfp4(dir: &Path, blocks: Stored, scales: Stored) -> Result<Tensor, OpenError> {
    let name = MXFP4_PARTS.iter().find_map(|(end, _)| blocks.name.strip_suffix(end));
    let name = name.unwrap_or(&blocks.name).to_owned();
    let mut shape = scales.shape.clone();
    let cols = shape.last().and_then(|n| n.checked_mul(MXFP4_BLOCK));
    // The bytes of a block may be a dimension of their own.
    let rows_of = |shape: &[usize]| shape.split_last().map(|(last, outer)| (outer.to_vec(), *last));
    let fits = match (rows_of(&blocks.shape), rows_of(&shape)) {
        (Some((outer, MXFP4_BYTES)), _) if outer == shape => true,
        (Some((outer, bytes)), Some((rows, n))) => outer == rows && bytes == n.saturating_mul(MXFP4_BYTES),
        _ => false,
    };
    let (true, Some(cols), StoredType::Raw(RawType::U8 | RawType::F8E8M0)) = (fits, cols, &scales.ty) else {
        let expected = format!("bytes of the shape of {}, and {MXFP4_BYTES} more", quote(&scales.name));
        return Err(disagree(dir, &blocks.name, expected, format!("{:?}, {:?}", blocks.shape, scales.shape)));
    };
    if let Some(last) = shape.last_mut() {
        *last = cols;
    }
    let packing = Packing::Mxfp4 { scales: scales.extent };
    Ok(Tensor { packing, ..Tensor::plain(name, DType::Mxfp4, shape, blocks.extent) })
}

fn int4(dir: &Path, words: Stored, scales: Stored) -> Result<Tensor, OpenError> {
    if scales.ty != StoredType::Plain(DType::BF16) {
        return Err(disagree(dir, &scales.name, "scales of type BF16", scales.ty.to_string()));
    }
    let mut shape = scales.shape.clone();
    let fits = match (words.shape.split_last(), shape.split_last()) {
        (Some((n, rows)), Some((blocks, of_scales))) => {
            rows == of_scales && Some(*n) == blocks.checked_mul(INT4_WORDS)
        }
        _ => false,
    };
    let (true, Some(cols)) = (fits, shape.last().and_then(|n| n.checked_mul(INT4_BLOCK))) else {
        let expected = format!("{INT4_WORDS} words for each of {}", quote(&scales.name));
        return Err(disagree(dir, &words.name, expected, format!("{:?}, {:?}", words.shape, scales.shape)));
    };
    if let Some(last) = shape.last_mut() {
        *last = cols;
    }
    let name = words.name.strip_suffix(INT4_PARTS.0).unwrap_or(&words.name).to_owned();
    let packing = Packing::Int4 { scales: scales.extent };
    Ok(Tensor { packing, ..Tensor::plain(name, DType::Int4, shape, words.extent) })
}

fn disagree(dir: &Path, name: &str, expected: impl Into<String>, found: impl Into<String>) -> OpenError {
    OpenError::Disagree {
        path: dir.to_owned(),
        tensor: format!("tensor `{}`", quote(name)),
        expected: expected.into(),
        found: found.into(),
        census: "quantised weights".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use calypte_disk::{Extent, FileId};

    use super::*;

    fn stored(name: &str, ty: &str, shape: &[usize]) -> Stored {
        let ty = StoredType::of_safetensors(ty);
        let len = ty.byte_len(shape).expect("a size");
        let extent = Extent { file: FileId(0), offset: 0, len };
        Stored { name: name.to_owned(), ty, shape: shape.to_vec(), extent }
    }

    /// Name, type, shape and block of every tensor, or what an error must say.
    #[track_caller]
    fn check(config: &str, tensors: &[(&str, &str, &[usize])], expected: Result<&[&str], &str>) {
        let dir = Path::new("model");
        let config = HfConfig::from_bytes(dir, config.as_bytes()).expect("JSON");
        let all = tensors.iter().map(|(name, ty, shape)| stored(name, ty, shape)).collect();
        let joined = join(dir, &config, all, |_| dir, |name| name.ends_with("inv_freq"));
        let got = joined.map(|j| j.tensors.iter().map(in_words).collect::<Vec<_>>());
        match (got, expected) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "no `{want}` in: {error}"),
            (got, want) => panic!("{got:?} is not {want:?}"),
        }
    }

    fn in_words(t: &Tensor) -> String {
        let block = match t.packing {
            Packing::Plain => String::new(),
            Packing::Mxfp4 { .. } | Packing::Int4 { .. } => " split".to_owned(),
            Packing::Fp8(s) => format!(" {} {:?}", s.dtype, s.block),
        };
        format!("{} {} {:?}{block}", t.name, t.dtype, t.shape)
    }

    const FP8: &str = r#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}"#;

    #[test]
    fn fp8_values_and_their_scales() {
        let w = ("a.weight", "F8_E4M3", &[300, 200][..]);
        let scaled = |shape: &'static [usize]| [w, ("a.weight_scale_inv", "F32", shape)];
        check(FP8, &scaled(&[3, 2]), Ok(&["a.weight F8_E4M3 [300, 200] F32 [128, 128]"]));
        check(FP8, &scaled(&[300, 1]), Ok(&["a.weight F8_E4M3 [300, 200] F32 [1, 200]"]));
        check(FP8, &scaled(&[1]), Ok(&["a.weight F8_E4M3 [300, 200] F32 [300, 200]"]));
        check(FP8, &scaled(&[2, 3]), Err("expected shape [3, 2]"));
        check(FP8, &[w], Err("`a.weight_scale_inv` or `a.weight_scale`"));
        check(FP8, &[w, ("a.weight_scale", "I32", &[1])], Err("scales of type F32, F16 or BF16"));
        let stack = [("e", "F8_E4M3", &[4, 300, 200][..]), ("e_scale_inv", "BF16", &[4, 3, 2])];
        check(FP8, &stack, Ok(&["e F8_E4M3 [4, 300, 200] BF16 [128, 128]"]));
        // Scales of activations are nobody's business; a scale without values is left for the census to complain of.
        let more =
            [("a.weight", "F32", &[2][..]), ("a.input_scale", "F32", &[1]), ("b.weight_scale", "F32", &[1])];
        check(FP8, &more, Ok(&["a.weight F32 [2]", "b.weight_scale F32 [1]"]));
    }

    #[test]
    fn mxfp4_blocks_and_their_exponents() {
        let blocks = ("x_blocks", "U8", &[4, 6, 2, 16][..]);
        check("{}", &[blocks, ("x_scales", "U8", &[4, 6, 2])], Ok(&["x MXFP4 [4, 6, 64] split"]));
        check("{}", &[blocks, ("x_scales", "U8", &[4, 6, 3])], Err("tensor `x_blocks`"));
        check("{}", &[blocks], Err("found U8"));
        let packed = ("e.weight_packed", "U8", &[6, 32][..]);
        let kimi = r#"{"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized"}}"#;
        check(kimi, &[packed, ("e.weight_scale", "U8", &[6, 2])], Ok(&["e.weight MXFP4 [6, 64] split"]));
        check(kimi, &[packed, ("e.weight_scale", "F8_E4M3", &[6, 2])], Err("tensor `e.weight_packed`"));
    }

    /// A `pack-quantized` configuration as Kimi-K2-Thinking's, with one text replaced by another.
    fn int4_config(from: &str, to: &str) -> String {
        let weights = r#""actorder":null,"block_structure":null,"dynamic":false,"group_size":32,"num_bits":4,
            "observer":"minmax","observer_kwargs":{},"strategy":"group","symmetric":true,"type":"int""#;
        let group =
            format!(r#""group_0":{{"input_activations":null,"targets":["Linear"],"weights":{{{weights}}}}}"#);
        let all = format!(
            r#"{{"quantization_config":{{"quant_method":"compressed-tensors","format":"pack-quantized",
            "config_groups":{{{group}}},"transform_config":{{}}}}}}"#
        );
        assert!(all.contains(from), "no {from} in {all}");
        all.replace(from, to)
    }

    #[test]
    fn int4_words_and_their_scales() {
        let (words, scales) =
            (("e.weight_packed", "I32", &[6, 8][..]), ("e.weight_scale", "BF16", &[6, 2][..]));
        let kimi = int4_config("", "");
        let joined: Result<&[&str], &str> = Ok(&["e.weight INT4 [6, 64] split"]);
        check(&kimi, &[words, scales, ("e.weight_shape", "I64", &[2])], joined);
        check(&kimi, &[("e.weight_shape", "I32", &[2]), scales, words], joined);
        check(&kimi, &[words], Err("expected its scales, `e.weight_scale`"));
        check(&kimi, &[words, ("e.weight_scale", "BF16", &[6, 3])], Err("tensor `e.weight_packed`"));
        check(&kimi, &[words, ("e.weight_scale", "BF16", &[5, 2])], Err("tensor `e.weight_packed`"));
        check(&kimi, &[words, ("e.weight_scale", "BF16", &[usize::MAX, 0])], Err("tensor `e.weight_packed`"));
        check(
            &kimi,
            &[words, ("e.weight_scale", "F16", &[6, 2])],
            Err("expected scales of type BF16, found F16"),
        );
        for more in ["e.weight_zero_point", "e.weight_g_idx"] {
            check(&kimi, &[words, scales, (more, "I32", &[1, 2])], Err(more));
        }
        check("{}", &[words, scales], Err("found I32"));
    }

    #[test]
    fn int4_settings() {
        // What the library that writes these files takes where nothing is said.
        check(
            &int4_config(r#""strategy":"group","symmetric":true,"type":"int""#, r#""dynamic":false"#),
            &[],
            Ok(&[]),
        );
        check(&int4_config(r#""actorder":null"#, r#""actorder":false"#), &[], Ok(&[]));
        for (from, to, key) in [
            (r#""num_bits":4"#, r#""num_bits":8"#, "num_bits"),
            (r#""num_bits":4,"#, "", "num_bits"),
            (r#""group_size":32"#, r#""group_size":128"#, "group_size"),
            (r#""group_size":32"#, r#""group_size":null"#, "group_size"),
            (r#""symmetric":true"#, r#""symmetric":false"#, "symmetric"),
            (r#""type":"int""#, r#""type":"float""#, "type"),
            (r#""strategy":"group""#, r#""strategy":"channel""#, "strategy"),
            (r#""actorder":null"#, r#""actorder":"group""#, "actorder"),
            (r#""transform_config":{}"#, r#""transform_config":{"config_groups":{}}"#, "transform_config"),
            (r#""weights":{"#, r#""weights":null,"w":{"#, "config_groups"),
            (r#""group_0":{"#, r#""group_0":7,"g":{"#, "group_0"),
            (r#""config_groups":{"#, r#""config_groups":[],"g":{"#, "config_groups"),
        ] {
            check(&int4_config(from, to), &[], Err(&format!("key `{key}`")));
        }
    }

    #[test]
    fn other_types_and_methods() {
        check("{}", &[("x", "BF16", &[2, 2])], Ok(&["x BF16 [2, 2]"]));
        check("{}", &[("x", "I64", &[2])], Err("found I64"));
        check("{}", &[("l.inv_freq", "F64", &[2])], Ok(&[]));
        for method in ["awq", "gptq", "bitsandbytes"] {
            let config = format!(r#"{{"quantization_config":{{"quant_method":"{method}"}}}}"#);
            check(&config, &[], Err("key `quant_method`"));
        }
        let sparse = r#"{"quantization_config":{"quant_method":"compressed-tensors","format":"marlin-24"}}"#;
        check(sparse, &[], Err("expected float-quantized, mxfp4-pack-quantized or pack-quantized"));
        let odd = r#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}}"#;
        check(odd, &[], Err("two positive numbers"));
    }
}
