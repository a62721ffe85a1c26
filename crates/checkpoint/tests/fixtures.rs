//! Every committed fixture opens in both formats, and both catalogues describe the same model.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use calypte_checkpoint::arch::{
    Attention, Ffn, GateGroups, GroupWorth, IndexerKind, RopeLayout, RopeScaling,
};
use calypte_checkpoint::{Catalog, Role, TokenizerSource, gguf_tokenizer, open, supported_families};
use calypte_disk::Extent;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// What a fixture's `config.json` says, in numbers counted outside this program.
struct Expected {
    name: &'static str,
    family: &'static str,
    parameters: u64,
    layers: usize,
    mtp_layers: usize,
    /// `d` dense, `m` mixture, prediction layers included.
    ffn: &'static str,
    experts: usize,
    gguf_layout: RopeLayout,
    files: usize,
}

const LLAMA: Expected = Expected {
    name: "llama-a",
    family: "llama",
    parameters: 104_928,
    layers: 2,
    mtp_layers: 0,
    ffn: "dd",
    experts: 0,
    gguf_layout: RopeLayout::Interleaved,
    files: 1,
};
const QWEN: Expected = Expected {
    name: "qwen3_moe-a",
    family: "qwen3_moe",
    parameters: 87_872,
    layers: 3,
    ffn: "mdm",
    experts: 8,
    gguf_layout: RopeLayout::HalfSplit,
    ..LLAMA
};

#[test]
fn both_formats_describe_one_model() {
    check(LLAMA);
    check(Expected { name: "llama-b", parameters: 30_880, ..LLAMA });
    let mixtral = Expected { family: "mixtral", ffn: "mm", experts: 8, ..LLAMA };
    check(Expected { name: "mixtral-a", parameters: 66_208, files: 2, ..mixtral });
    check(Expected { name: "mixtral-b", parameters: 70_048, experts: 4, ..mixtral });
    check(QWEN);
    check(Expected {
        name: "qwen3_moe-b",
        parameters: 109_344,
        layers: 4,
        ffn: "dmdm",
        experts: 4,
        files: 3,
        ..QWEN
    });
    check(Expected {
        name: "glm_moe_dsa-a",
        family: "glm_moe_dsa",
        parameters: 525_232,
        layers: 8,
        mtp_layers: 1,
        ffn: "dddmmmmmm",
        experts: 8,
        gguf_layout: RopeLayout::Interleaved,
        files: 1,
    });
}

fn check(expected: Expected) {
    let dir = fixture(expected.name);
    let hf = open(&dir).expect(expected.name);
    let gguf = open(&dir.join("model.gguf")).expect(expected.name);
    assert_eq!((hf.format, gguf.format), ("safetensors", "gguf"));
    assert_eq!(hf.files.len(), expected.files, "{}", expected.name);
    for catalog in [&hf, &gguf] {
        let arch = &catalog.arch;
        assert_eq!(arch.family, expected.family);
        assert_eq!(catalog.parameters().total, expected.parameters, "{} {}", expected.name, catalog.format);
        assert_eq!((arch.layers, arch.mtp_layers), (expected.layers, expected.mtp_layers));
        let kinds: String = arch.ffn.iter().map(|f| if *f == Ffn::Moe { 'm' } else { 'd' }).collect();
        assert_eq!(kinds, expected.ffn, "{}", expected.name);
        assert!(catalog.experts.iter().all(|l| l.extents.len() == expected.experts));
        assert_eq!(catalog.experts.len(), expected.ffn.matches('m').count());
        assert!(catalog.unclaimed.is_empty());
    }
    assert_eq!(gguf.arch.ropes[0].layout, expected.gguf_layout);
    same_arch(&hf, &gguf);
    assert_eq!(hf.parameters().active, gguf.parameters().active);
    assert_eq!(hf.parameters().expert_bytes_total, gguf.parameters().expert_bytes_total);
    same_bytes(&hf, &gguf, expected.name);
    assert_ne!(hf.fingerprint, gguf.fingerprint);
    assert_eq!(hf.fingerprint, open(&dir).expect(expected.name).fingerprint);
}

/// All but what belongs to the stored values (the rope layout, norms stored less one, wavelength factors stored instead of
/// computed), and token ids that the GGUF file does not have.
fn same_arch(hf: &Catalog, gguf: &Catalog) {
    let mut other = gguf.arch.clone();
    for (rope, of_hf) in other.ropes.iter_mut().zip(&hf.arch.ropes) {
        rope.layout = of_hf.layout;
        if rope.scaling == RopeScaling::Stored {
            rope.scaling = of_hf.scaling.clone();
        }
        // GGUF stores single precision.
        assert!((rope.theta - of_hf.theta).abs() <= of_hf.theta * 1e-7);
        rope.theta = of_hf.theta;
    }
    other.norms.weight_offset = hf.arch.norms.weight_offset;
    if matches!(gguf.tokenizer, TokenizerSource::Missing) {
        other.bos = hf.arch.bos;
        other.eos = hf.arch.eos.clone();
    }
    // One GGUF architecture serves several families.
    other.family = hf.arch.family;
    let mut hf = hf.arch.clone();
    if other.mtp_layers == 0 {
        // Converters leave the layers for multi-token prediction of some families out.
        let trunk = hf.layers;
        hf.mtp_layers = 0;
        hf.ffn.truncate(trunk);
        hf.views.truncate(trunk);
    }
    assert_eq!(hf, other);
}

#[test]
fn both_formats_describe_the_same_model() {
    let mut compared = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(fixture(".")).unwrap() {
        let dir = entry.unwrap().path();
        let gguf = dir.join("model.gguf");
        if gguf.exists() && dir.join("config.json").exists() {
            let (hf, gguf) = (open(&dir).unwrap(), open(&gguf).unwrap());
            println!("{}", dir.display());
            same_arch(&hf, &gguf);
            compared.insert(hf.arch.family);
        }
    }
    let families: std::collections::BTreeSet<_> = supported_families().iter().map(|f| f.model_type).collect();
    assert_eq!(compared, families);
}

/// Experts and every tensor that both files store alike hold the same bytes, so no extent is off by anything.
fn same_bytes(hf: &Catalog, gguf: &Catalog, name: &str) {
    let mut compared = 0;
    for (a, b) in hf.experts.iter().zip(&gguf.experts) {
        assert_eq!((a.layer, a.gate, a.up, a.down), (b.layer, b.gate, b.up, b.down), "{name}");
        for (expert, (x, y)) in a.extents.iter().zip(&b.extents).enumerate() {
            for part in 0..3 {
                assert_eq!(
                    bytes(hf, x[part]),
                    bytes(gguf, y[part]),
                    "{name} layer {} expert {expert}",
                    a.layer
                );
            }
        }
    }
    let permuted = hf.arch.ropes[0].layout != gguf.arch.ropes[0].layout;
    for (key, a) in &hf.tensors {
        let Some(b) = gguf.get(key.layer, key.role) else {
            continue;
        };
        assert_eq!(a.shape, b.shape, "{name} {key:?}");
        if a.dtype == b.dtype && !(permuted && matches!(key.role, Role::AttnQ | Role::AttnK)) {
            assert_eq!(bytes(hf, a.extent), bytes(gguf, b.extent), "{name} {key:?}");
            compared += 1;
        }
    }
    assert!(compared >= 3 * hf.arch.layers, "{name}: only {compared} tensors compared");
}

fn bytes(catalog: &Catalog, extent: Extent) -> Vec<u8> {
    let mut file = File::open(&catalog.files[extent.file.0 as usize].path).unwrap();
    file.seek(SeekFrom::Start(extent.offset)).unwrap();
    let mut out = vec![0; extent.len as usize];
    file.read_exact(&mut out).unwrap();
    out
}

#[test]
fn weight_files_beside_the_model_are_named() {
    let sharded = open(&fixture("mixtral-a")).unwrap();
    assert_eq!(
        (sharded.files.len(), sharded.ignored.as_slice()),
        (2, &["expected.safetensors".to_owned()][..])
    );
    assert!(open(&fixture("mixtral-a/model.gguf")).unwrap().ignored.is_empty());
}

#[test]
fn active_parameters_are_what_a_token_meets() {
    // Counted by hand: everything but the embedding, two experts of four in layers 1 and 3.
    let c = open(&fixture("qwen3_moe-b")).unwrap();
    let (embedding, expert) = (128 * 32, 3 * 64 * 32);
    assert_eq!(c.parameters().active, 109_344 - embedding - 2 * 2 * expert);
    // A tied embedding is also the output matrix.
    let c = open(&fixture("llama-a")).unwrap();
    assert!(c.arch.tied_embeddings);
    assert_eq!(c.parameters().active, c.parameters().total);
}

#[test]
fn glm_has_its_widths_and_indexers() {
    let c = open(&fixture("glm_moe_dsa-a")).unwrap();
    let Attention::Mla(a) = &c.arch.attention else { panic!("no latent attention") };
    assert_eq!((a.heads, a.q_lora, a.kv_lora, a.nope, a.rope, a.v), (3, Some(32), 32, 32, 8, 32));
    assert_eq!(a.latent_norm_eps, 1e-6);
    let dsa = c.arch.dsa.as_ref().unwrap();
    let kinds: String = dsa.layers.iter().map(|k| if *k == IndexerKind::Full { 'F' } else { 'S' }).collect();
    assert_eq!((kinds.as_str(), dsa.heads, dsa.head_dim, dsa.topk), ("FFFSSSFSF", 16, 64, 12));
    assert_eq!(c.arch.eos, [318, 319]);
    assert!(c.get(Some(8), Role::MtpProjection).is_some() && c.get(Some(8), Role::MtpEmbedding).is_none());
    let TokenizerSource::HuggingFace { tokenizer_json, chat_template } = &c.tokenizer else {
        panic!("no tokenizer");
    };
    assert!(tokenizer_json.is_file() && chat_template.is_some());
    let gguf = open(&fixture("glm_moe_dsa-a/model.gguf")).unwrap();
    let TokenizerSource::Gguf(t) = &gguf.tokenizer else { panic!("no tokenizer") };
    assert_eq!(
        (t.pre.as_deref(), t.eos, t.eot, t.add_bos),
        (Some("glm4"), Some(318), Some(319), Some(false))
    );
    assert_eq!(t.chat_template.is_some(), chat_template.is_some());
}

#[test]
fn expert_groups_come_from_both_formats() {
    for model in ["glm_moe_dsa-b", "glm_moe_dsa-b/model.gguf"] {
        let moe = open(&fixture(model)).unwrap().arch.moe.unwrap();
        assert_eq!(
            moe.gate.groups,
            Some(GateGroups { count: 4, kept: 2, worth: GroupWorth::TwoBest }),
            "{model}"
        );
    }
}

#[test]
fn indexers_are_found_without_their_list() {
    let original = fixture("glm_moe_dsa-a/model.gguf");
    let want = open(&original).unwrap();
    let mut bytes = std::fs::read(&original).unwrap();
    let key = b"attention.indexer.types";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
    bytes[at + key.len() - 1] = b'_';
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let dsa = want.arch.dsa.unwrap();
    assert!(dsa.layers.contains(&IndexerKind::Shared), "{:?}", dsa.layers);
    assert_eq!(open(&path).unwrap().arch.dsa, Some(dsa));
}

#[test]
fn mixed_block_formats_have_exact_extents() {
    let c = open(&fixture("quant-mix")).unwrap();
    assert_eq!((c.format, c.parameters().total), ("gguf", 610_240));
    for layer in &c.experts {
        for (part, m) in [layer.gate, layer.up, layer.down].into_iter().enumerate() {
            let len = (m.rows * m.dtype.row_bytes(m.cols).unwrap()) as u64;
            assert!(layer.extents.iter().all(|e| e[part].len == len));
            assert!(layer.extents.windows(2).all(|w| w[0][part].offset + len == w[1][part].offset));
        }
    }
    let types: std::collections::BTreeSet<_> = c.tensors.values().map(|t| t.dtype).collect();
    assert!(types.len() >= 5, "{types:?}");
}

#[test]
fn a_tokenizer_file_without_weights_can_be_read() {
    let TokenizerSource::Gguf(t) = gguf_tokenizer(&fixture("text/tokenizer.gguf")).unwrap() else {
        panic!("no tokenizer");
    };
    assert_eq!((t.model.as_str(), t.tokens.len()), ("gpt2", 500));
    assert!(!t.merges.is_empty());
}

/// Our reader of safetensors headers against the format's own crate.
#[test]
fn safetensors_agree_with_the_reference_reader() {
    for name in ["llama-b", "glm_moe_dsa-a", "mixtral-a"] {
        let c = open(&fixture(name)).unwrap();
        let mut seen = 0;
        for (i, file) in c.files.iter().enumerate() {
            let bytes = std::fs::read(&file.path).unwrap();
            let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let ours = c.tensors.values().filter(|t| t.extent.file.0 as usize == i);
            for t in ours {
                let r = reference.tensor(&t.name).unwrap();
                assert_eq!(r.shape(), t.shape);
                assert_eq!(r.data(), self::bytes(&c, t.extent));
                seen += 1;
            }
        }
        assert_eq!(seen, c.tensors.len(), "{name}");
    }
}
