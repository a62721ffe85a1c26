//! The 12,000 lines that `tools/oracle/mixed_text.py` makes, made again.

use std::path::PathBuf;

use serde_json::{Map, Value};

/// Lines of the text.
const LINES: usize = 12_000;

const SEED: u64 = 0xCA1F;

/// First and last of the ranges that characters are drawn from.
const RANGES: [(u32, u32); 16] = [
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x250, 0x36F),
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
    (0xE00, 0x10FF),
    (0x1E00, 0x206F),
    (0x2070, 0x2BFF),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFFFD),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF),
    (0, 0x10FFFF),
];

/// A file of `fixtures/text`.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/text").join(name)
}

/// Its JSON.
pub fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 32) as usize % n
    }

    fn choose<'a>(&mut self, items: &'a [String]) -> &'a str {
        &items[self.below(items.len())]
    }
}

/// The building blocks, by kind.
struct Parts {
    kinds: Vec<Vec<String>>,
    joint: Vec<String>,
    punctuation: Vec<String>,
    run: Vec<String>,
}

impl Parts {
    fn read() -> Self {
        let file: Map<String, Value> = serde_json::from_value(json("mixed_parts.json")).unwrap();
        let list = |v: &Value| serde_json::from_value::<Vec<String>>(v.clone()).unwrap();
        Self {
            kinds: file.values().map(list).collect(),
            joint: list(&file["joint"]),
            punctuation: list(&file["punctuation"]),
            run: list(&file["run"]),
        }
    }

    fn any(&self, random: &mut Random) -> &str {
        let kind = random.below(self.kinds.len());
        random.choose(&self.kinds[kind])
    }

    fn line(&self, random: &mut Random) -> String {
        let mut out = String::new();
        match random.below(8) {
            0..3 => {
                for _ in 0..1 + random.below(14) {
                    out += self.any(random);
                    out += random.choose(&self.joint);
                }
            }
            3 | 4 => {
                let kind = random.below(self.kinds.len());
                for _ in 0..2 + random.below(12) {
                    out += random.choose(&self.kinds[kind]);
                    if random.below(5) == 0 {
                        out += random.choose(&self.punctuation);
                    }
                    out.push(' ');
                }
            }
            5 => (0..1 + random.below(24)).for_each(|_| out.push(character(random))),
            6 => {
                for _ in 0..1 + random.below(4) {
                    let piece =
                        if random.below(2) == 1 { random.choose(&self.run) } else { self.any(random) };
                    out += &piece.repeat(1 + random.below(40));
                    out += random.choose(&self.joint);
                }
            }
            _ => {
                for _ in 0..1 + random.below(6) {
                    out += self.any(random);
                    out.push(character(random));
                }
            }
        }
        out
    }
}

fn character(random: &mut Random) -> char {
    let (first, last) = RANGES[random.below(RANGES.len())];
    let code = first + random.below((last - first + 1) as usize) as u32;
    char::from_u32(code).or_else(|| char::from_u32(code - 0x2000)).unwrap()
}

/// All lines.
pub fn lines() -> Vec<String> {
    let (parts, mut random) = (Parts::read(), Random(SEED));
    (0..LINES).map(|_| parts.line(&mut random)).collect()
}

/// FNV-1a, 64 bits.
pub fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}
