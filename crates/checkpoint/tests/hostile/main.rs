//! Broken, lying and unsupported files: each is refused, and the message says what is wrong.

mod gguf;
mod safetensors;
mod split;
mod tiny;

use std::path::Path;

use calypte_checkpoint::open;
use calypte_testkit::gguf_writer::GgufValue;
use tiny::{Case, check, open_case, tiny_gguf, tiny_hf};

#[test]
fn the_tiny_models_are_sound() {
    let (gguf, _dir) =
        open_case(&Case { files: vec![("m.gguf".to_owned(), tiny_gguf().build())], target: "m.gguf" });
    let gguf = gguf.unwrap();
    let (hf, _dir) = open_case(&tiny_hf().case());
    let hf = hf.unwrap();
    assert_eq!((gguf.name.as_str(), gguf.arch.family, hf.arch.family), ("tiny", "mixtral", "mixtral"));
    assert_eq!(gguf.parameters(), hf.parameters());
    for c in [&gguf, &hf] {
        assert_eq!((c.experts.len(), c.experts[0].extents.len(), c.arch.tied_embeddings), (1, 2, true));
    }
    // The same model in a directory of its own, as version 2, and with another alignment.
    let aligned = tiny_gguf().alignment(64).key("general.alignment", GgufValue::U32(64));
    for w in [tiny_gguf().version(2), aligned, tiny_gguf().key("split.count", GgufValue::U32(1))] {
        let (c, _dir) = open_case(&Case { files: vec![("any.gguf".to_owned(), w.build())], target: "" });
        assert_eq!(c.unwrap().parameters(), gguf.parameters());
    }
}

#[test]
fn paths_without_a_model() {
    let none = || Case { files: vec![], target: "" };
    let with = |names: &[&str]| Case {
        files: names.iter().map(|n| ((*n).to_owned(), b"{}".to_vec())).collect(),
        target: "",
    };
    check("an empty directory", none(), &["config.json and safetensors", "found neither"]);
    check("no config", with(&["model.safetensors"]), &["without config.json", "fetch config.json"]);
    check("no weights", with(&["config.json", "pytorch_model.bin"]), &["without any .safetensors", ".bin"]);
    check("no GGUF", with(&["a.gguf", "b.gguf"]), &["no model", "`a.gguf (damaged)`, `b.gguf (damaged)`"]);
    check(
        "another file",
        Case { target: "readme", ..with(&["readme"]) },
        &["another kind of file", "directory"],
    );
    for missing in ["nowhere.gguf", "no/such/model"] {
        let text = open(Path::new(missing)).unwrap_err().to_string();
        assert!(
            text.contains(missing) && text.contains("cannot be read") && text.contains("check the path"),
            "{text}"
        );
    }
}
