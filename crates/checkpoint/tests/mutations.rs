//! Damaged headers never panic: a plain test in the manner of a fuzzer, with fixed pseudo-random places.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use calypte_checkpoint::open;

const MUTATIONS_PER_FILE: usize = 90;

/// A small generator (xorshift64*, Marsaglia 2003 and Vigna 2016), so that every run tries the same places.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// A file of a fixture: the bytes that are read when opening, and the size, of which the rest stays a hole.
struct HeaderFile {
    name: String,
    header: Vec<u8>,
    size_bytes: u64,
}

impl HeaderFile {
    fn write(&self, dir: &Path, header: &[u8], size_bytes: u64) {
        // Not truncated to nothing first: some file systems then write to the disk on every close.
        let options = fs::File::options().write(true).create(true).truncate(false).clone();
        let mut file = options.open(dir.join(&self.name)).unwrap();
        file.write_all(header).unwrap();
        file.set_len(size_bytes).unwrap();
    }
}

#[test]
fn damaged_gguf_headers_never_panic() {
    for name in fixture_names() {
        let dir = fixture(&name);
        run(&name, vec![header_file(&dir, "model.gguf")], |d| d.join("model.gguf"));
    }
}

#[test]
fn damaged_safetensors_directories_never_panic() {
    for name in fixture_names() {
        let dir = fixture(&name);
        let files: Vec<HeaderFile> = fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n.starts_with("model") && !n.ends_with(".gguf") || n.ends_with("config.json"))
            .map(|n| header_file(&dir, &n))
            .collect();
        // quant-mix has no safetensors.
        if files.iter().any(|f| f.name == "config.json") {
            run(&name, files, Path::to_owned);
        }
    }
}

fn run(name: &str, files: Vec<HeaderFile>, target: impl Fn(&Path) -> PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for f in &files {
        f.write(dir.path(), &f.header, f.size_bytes);
    }
    let whole = open(&target(dir.path()));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut refused = 0;
    for f in &files {
        for _ in 0..MUTATIONS_PER_FILE {
            let (header, size_bytes) = mutate(&mut random, f);
            f.write(dir.path(), &header, size_bytes);
            if let Err(e) = open(&target(dir.path())) {
                let text = e.to_string();
                assert!(text.contains(dir.path().to_str().unwrap()), "{name}: no path in: {text}");
                refused += 1;
            }
        }
        f.write(dir.path(), &f.header, f.size_bytes);
    }
    // The harness works: the restored files open as before, and most of the damage is noticed.
    assert_eq!(whole.is_ok(), open(&target(dir.path())).is_ok());
    assert!(refused * 2 > files.len() * MUTATIONS_PER_FILE, "{name}: only {refused} refused");
}

/// One damaged version of a file.
fn mutate(random: &mut Random, f: &HeaderFile) -> (Vec<u8>, u64) {
    let mut h = f.header.clone();
    let at = random.below(h.len());
    let mut size_bytes = f.size_bytes;
    match random.below(7) {
        0 => h[at] ^= 1 << random.below(8),
        1 => h[at] = random.next() as u8,
        2 => h[at] = 0xff,
        3 => {
            let end = (at + 8).min(h.len());
            let value = [u64::MAX, 0, 1 << 63, 1 << 40, u64::from(u32::MAX)][random.below(5)].to_le_bytes();
            h[at..end].copy_from_slice(&value[..end - at]);
        }
        4 => {
            h.truncate(at);
            size_bytes = at as u64;
        }
        5 => {
            let end = (at + 1 + random.below(40)).min(h.len());
            h.drain(at..end);
        }
        _ => {
            let end = (at + 1 + random.below(40)).min(h.len());
            let piece = h[at..end].to_vec();
            h.splice(at..at, piece);
        }
    }
    (h, size_bytes)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Every fixture that holds a model.
fn fixture_names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(fixture(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| fixture(n).join("model.gguf").is_file())
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 9, "fixtures are missing: {names:?}");
    names
}

/// The part of a file that is read when it is opened.
fn header_file(dir: &Path, name: &str) -> HeaderFile {
    let bytes = fs::read(dir.join(name)).unwrap();
    let len = if name.ends_with(".safetensors") {
        8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
    } else if name.ends_with(".gguf") {
        let catalog = open(&dir.join(name));
        let first =
            |c: calypte_checkpoint::Catalog| c.tensors.values().map(|t| t.extent.offset).min().unwrap();
        // A fixture that is refused has no offsets to ask for; headers of this size are usual.
        catalog.map_or(16 << 10, |c| first(c) as usize)
    } else {
        bytes.len()
    };
    let size_bytes = bytes.len() as u64;
    HeaderFile { name: name.to_owned(), header: bytes[..len.min(bytes.len())].to_vec(), size_bytes }
}
