//! Rules of the house, as tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn crates() -> Vec<String> {
    let dirs = std::fs::read_dir(root().join("crates")).expect("crates/");
    let mut names: Vec<String> =
        dirs.map(|d| d.expect("an entry").file_name().into_string().expect("a plain name")).collect();
    names.sort();
    names
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn rust_files(name: &str, part: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(&root().join("crates").join(name).join(part), &mut files);
    files
}

/// The crates of this workspace that `name` depends on, tests not counted.
fn edges(name: &str) -> BTreeSet<String> {
    let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if let Some(rest) = line.strip_prefix("calypte-").filter(|_| inside) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
            found.insert(rest[..end].to_string());
        }
    }
    found
}

/// Arrows go one way: what each crate may depend on. ARCHITECTURE.md draws the same picture.
#[test]
fn dependencies_go_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("quant", &[][..]),
        ("disk", &[]),
        ("checkpoint", &["quant", "disk"]),
        ("residency", &["disk"]),
        ("replay", &["residency"]),
        ("kernels", &["quant"]),
        ("model", &["checkpoint", "disk", "kernels", "quant", "residency"]),
        ("text", &["checkpoint"]),
        ("engine", &["checkpoint", "disk", "kernels", "model", "quant", "residency", "text"]),
        ("cli", &["engine", "replay"]),
        ("testkit", &["disk", "quant"]),
    ]);
    for name in crates() {
        let allowed =
            allowed.get(name.as_str()).unwrap_or_else(|| panic!("crates/{name} is not in the map: draw it"));
        for edge in edges(&name) {
            assert!(allowed.contains(&edge.as_str()), "crates/{name} must not depend on crates/{edge}");
        }
    }
}

#[test]
fn unsafe_code_stays_in_two_rooms_and_gives_its_reasons() {
    for name in crates() {
        for file in rust_files(&name, "src") {
            let text = read(&file);
            let code = text.lines().map(|l| l.split("//").next().unwrap_or(l));
            let unsafe_lines = code.filter(|l| l.contains("unsafe {") || l.contains("unsafe impl")).count();
            if name == "kernels" || name == "disk" {
                let reasons = text.matches("SAFETY:").count();
                assert!(
                    reasons >= unsafe_lines,
                    "{}: {unsafe_lines} unsafe, {reasons} reasons",
                    file.display()
                );
            } else {
                assert_eq!(unsafe_lines, 0, "{} holds unsafe code", file.display());
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for name in crates() {
        for file in rust_files(&name, "") {
            assert!(read(&file).starts_with("//!"), "{} has no head comment", file.display());
        }
        let lib = root().join("crates").join(&name).join("src/lib.rs");
        if lib.exists() {
            let head: String = read(&lib).lines().take_while(|l| l.starts_with("//!")).collect();
            assert!(head.contains("never"), "crates/{name}/src/lib.rs: say what must never live there");
        }
    }
}

/// One file, one subject: past this length a file usually holds two.
const LINES_MAX: usize = 600;

#[test]
fn files_stay_short() {
    for file in crates().iter().flat_map(|name| rust_files(name, "")) {
        let lines = read(&file).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines; split it", file.display());
    }
}

#[test]
fn the_architecture_page_knows_every_room() {
    let text = read(&root().join("ARCHITECTURE.md"));
    for name in crates() {
        assert!(text.contains(&format!("`{name}`")), "ARCHITECTURE.md does not mention crates/{name}");
    }
}
