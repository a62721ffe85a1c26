//! GGUF models in several files: found from any of them, and refused when they do not fit together.

use calypte_checkpoint::{Catalog, open, open_files};
use calypte_testkit::gguf_writer::{GgufValue, GgufWriter};

use super::tiny::{Case, UP, check, open_case, tiny_gguf};

/// Tensors per part; the first may have none.
const LENS: [usize; 3] = [0, 5, 7];

fn name(stem: &str, number: usize) -> String {
    format!("{stem}-{number:05}-of-{:05}.gguf", LENS.len())
}

/// The tiny model in three parts with these names, of which some are left out.
fn parts(names: [Option<String>; 3]) -> Vec<(String, Vec<u8>)> {
    let parts = tiny_gguf().split(&LENS);
    parts.iter().zip(names).filter_map(|(part, name)| Some((name?, part.build()))).collect()
}

fn all(stem: &str) -> Vec<(String, Vec<u8>)> {
    parts([1, 2, 3].map(|n| Some(name(stem, n))))
}

fn check_open(what: &str, files: Vec<(String, Vec<u8>)>, target: &'static str) -> Catalog {
    let (catalog, dir) = open_case(&Case { files, target });
    let catalog = catalog.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((catalog.files.len(), catalog.experts.len(), catalog.name.as_str()), (3, 1, "tiny"), "{what}");
    // Whichever file was given, the catalogue is the same, and every extent is in the file that has it.
    let whole = open_case(&Case { files: all("m"), target: "" }).0.unwrap();
    assert_eq!((catalog.fingerprint, &catalog.arch), (whole.fingerprint, &whole.arch), "{what}");
    let given = catalog.source.file_name().unwrap().to_str().unwrap();
    assert!(dir.path().join(given).is_file() && (target.is_empty() || given == target), "{what}: {given}");
    catalog
}

#[test]
fn any_part_opens_the_whole() {
    for target in ["", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"] {
        let catalog = check_open("by name", all("m"), target);
        let numbers: Vec<u32> = catalog.tensors.values().map(|t| t.extent.file.0).collect();
        assert!(numbers.iter().all(|&n| n == 1 || n == 2) && numbers.contains(&1) && numbers.contains(&2));
    }
    let odd = || parts(["one.gguf", "zwei.gguf", "drei.GGUF"].map(|n| Some(n.to_owned())));
    for target in ["", "one.gguf", "zwei.gguf", "drei.GGUF"] {
        check_open("by header", odd(), target);
    }
    let renamed = || parts([Some(name("m", 1)), Some("second.gguf".to_owned()), Some(name("m", 3))]);
    for target in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        check_open("one renamed", renamed(), target);
    }
    // Another model, and a file that is none, beside it do not disturb a path.
    let mut crowd = all("m");
    crowd.extend(all("other"));
    crowd.push(("single.gguf".to_owned(), tiny_gguf().build()));
    crowd.push(("broken.gguf".to_owned(), b"GGUF".to_vec()));
    check_open("a crowd", crowd, "m-00002-of-00003.gguf");
}

#[test]
fn a_list_opens_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (i, (name, bytes)) in all("m").into_iter().enumerate() {
        let place = dir.path().join(i.to_string());
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join(&name), bytes).unwrap();
        paths.push(place.join(name));
    }
    let whole = open_case(&Case { files: all("m"), target: "" }).0.unwrap();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let catalog = open_files(&order.map(|i| paths[i].clone())).unwrap();
        assert_eq!(catalog.fingerprint, whole.fingerprint);
    }
    let text = open_files(&paths[1..]).unwrap_err().to_string();
    assert!(text.contains("missing `m-00001-of-00003.gguf`"), "{text}");
    assert!(
        open(&paths[0]).unwrap_err().to_string().contains("`m-00002-of-00003.gguf`, `m-00003-of-00003.gguf`")
    );
    assert!(open_files(&[]).unwrap_err().to_string().contains("an empty list"));
}

#[test]
fn missing_parts_are_all_named() {
    let only = |keep: &[usize]| {
        let some = |n: usize| keep.contains(&n).then(|| name("m", n));
        parts([some(1), some(2), some(3)])
    };
    let first = ["expected 3 files", "found 1", "`m-00002-of-00003.gguf`, `m-00003-of-00003.gguf`; fetch"];
    check("first alone", Case { files: only(&[1]), target: "m-00001-of-00003.gguf" }, &first);
    check("first alone, directory", Case { files: only(&[1]), target: "" }, &first);
    let middle = ["found 1", "`m-00001-of-00003.gguf`, `m-00003-of-00003.gguf`; fetch"];
    check("middle alone", Case { files: only(&[2]), target: "" }, &middle);
    check(
        "no middle",
        Case { files: only(&[1, 3]), target: "" },
        &["found 2", "missing `m-00002-of-00003.gguf`; "],
    );
    let odd = parts([Some("one.gguf".to_owned()), None, Some("three.gguf".to_owned())]);
    check("no name", Case { files: odd, target: "" }, &["missing `part 2 of 3 (split.no 1)`"]);
}

/// Three parts of which one is replaced must be refused.
fn check_part(what: &str, number: usize, change: impl Fn(GgufWriter) -> GgufWriter, says: &[&str]) {
    let mut files = all("m");
    files[number].1 = change(tiny_gguf().split(&LENS)[number].clone()).build();
    check(what, Case { files, target: "m-00001-of-00003.gguf" }, says);
}

#[test]
fn parts_must_fit_together() {
    let n = GgufValue::U16;
    check_part(
        "number",
        1,
        |w| w.set("split.no", n(2)),
        &["m-00002-of-00003.gguf", "part 2 of 3", "found part 3 of 3"],
    );
    check_part(
        "own number",
        0,
        |w| w.set("split.no", n(1)),
        &["`split.no`", "expected 0", "says 1 of 3", "found 1"],
    );
    check_part("number out of range", 0, |w| w.set("split.no", n(3)), &["`split.no`", "up to 2", "found 3"]);
    check_part(
        "no number",
        0,
        |w| w.without_key("split.no"),
        &["`split.no`", "split.count is 3", "found nothing"],
    );
    check_part("count", 2, |w| w.set("split.count", n(4)), &["m-00003-of-00003.gguf", "found part 3 of 4"]);
    check_part(
        "no part",
        2,
        |w| w.without_key("split.count"),
        &["m-00003-of-00003.gguf", "a model in one file"],
    );
    check_part("count in words", 0, |w| w.set("split.count", "three"), &["`split.count`", "found `three`"]);
    check_part(
        "another total",
        1,
        |w| w.set("split.tensors.count", n(9)),
        &["with 12 tensors", "with 9 tensors"],
    );
    check_part(
        "tensor twice",
        1,
        |w| w.zeros(UP, &[2, 32, 32]),
        &[UP, "expected once", "in `m-00003-of-00003.gguf`"],
    );
    check_part(
        "more tensors",
        1,
        |w| w.zeros("extra", &[2]),
        &["split.tensors.count", "expected 13", "found 12"],
    );
    check_part("damaged", 1, |w| w.version(1), &["m-00002-of-00003.gguf", "version 1"]);
    check_part("cut", 2, |w| w.offset(UP, 1 << 40), &["m-00003-of-00003.gguf", UP, "truncated"]);
    check_part("aligned", 1, |w| w.key("general.alignment", n(64)), &["m-00002-of-00003.gguf", "truncated"]);
    let twice = parts([Some("a.gguf".to_owned()), Some("b.gguf".to_owned()), Some("c.gguf".to_owned())]);
    let mut twice = Case { files: twice, target: "a.gguf" };
    twice.files.push(("d.gguf".to_owned(), twice.files[1].1.clone()));
    check("ambiguous", twice, &["`b.gguf` and `d.gguf`, both part 2 of 3", "one model only"]);
}

#[test]
fn a_directory_must_hold_one_model() {
    let with = |more: &[(&str, GgufWriter)]| {
        let mut files = all("m");
        files.extend(more.iter().map(|(name, w)| ((*name).to_owned(), w.build())));
        Case { files, target: "" }
    };
    let single = || ("b.gguf", tiny_gguf());
    check(
        "two models",
        with(&[single()]),
        &["2 models", "`b.gguf`", "`m-00001-of-00003.gguf and 2 more parts`"],
    );
    let clip = GgufWriter::new().key("general.architecture", "clip");
    let adapter = tiny_gguf().key("general.type", "adapter");
    let beside = [("mmproj-f16.gguf", clip), ("lora.gguf", adapter)];
    check(
        "companions",
        with(&beside),
        &[
            "one model, `m-00001-of-00003.gguf and 2 more parts`",
            "beside it `lora.gguf (adapter)`, `mmproj-f16.gguf (mmproj)`",
            "give the path",
        ],
    );
    let mut two = all("m");
    two.extend(all("n"));
    check("two series", Case { files: two, target: "" }, &["2 models", "m-00001", "n-00001"]);
}
