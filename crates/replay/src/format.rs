//! The file format of traces, versions 1 and 2. Numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `CALYROUT` |
//! | 4 | version: 2 if somebody guessed during the run, otherwise 1 |
//! | 4 | number of layers with experts |
//! | 32 | fingerprint of the model's tensors (as `calypte inspect` shows it), or zeros |
//! | 8 | memory for experts during the run, in bytes, or 0 |
//! | 32 | version 2 only: the name of who guessed, in ASCII, filled up with zeros |
//! | 24 per layer | its number in the model (4), its experts (4), experts per token (4), 0 (4), memory of one expert in bytes or 0 (8) |
//! | … | steps |
//! | 4 | 0, where the next step would begin |
//! | 8 | number of steps |
//!
//! A step: 4 bytes for its rows, with bit 31 set if another conversation begins with it; then, for every layer in order and
//! every row in order, the experts chosen, best first, one byte each if the layer has at most 256 experts and two otherwise.
//! A token of Qwen3-30B (48 layers, 8 of 128) takes 384 bytes and a share of 4.
//!
//! In version 2 a step of one row is followed by what was guessed during it: 4 bytes for the number of lists; then for each list 2
//! bytes for the layer that had just been routed (its index here), 2 for the later one that it is of, 2 for its length, and for
//! each guess 2 bytes for the expert and 4 for its probability, a float.

use std::path::Path;

use calypte_residency::predict::Guess;

use crate::error::{Bytes, RECORD_AGAIN};
use crate::{Expected, PREDICTOR_BYTES_MAX, Step, Trace, TraceError, TraceLayer};

const MAGIC: &[u8; 8] = b"CALYROUT";
const VERSION: u32 = 1;
/// With guesses.
const VERSION_GUESSED: u32 = 2;
/// Bit of a step's first word: another conversation begins.
const BEGINS_SEQUENCE: u32 = 1 << 31;
/// Layers that a trace may have: caches are made for as many as a file says, before it proves that it has them.
pub(crate) const LAYERS_MAX: u32 = 1 << 10;
/// Experts that a layer may have, for the same reason.
pub(crate) const EXPERTS_MAX: u32 = 1 << 14;
/// Layers with at most this many experts have ids of one byte.
const ONE_BYTE_EXPERTS_MAX: u32 = 256;

impl Trace {
    /// Reads a trace from a file: this format, or an `.npz` whose sequences are `sequence_tokens` long (see
    /// [`Trace::from_npz`]).
    ///
    /// # Errors
    /// [`TraceError`], with file, offset, what was expected and what was found.
    pub fn read(path: &Path, sequence_tokens: Option<usize>) -> Result<Trace, TraceError> {
        let bytes = std::fs::read(path).map_err(|e| TraceError::io(path, e))?;
        if bytes.starts_with(b"PK") {
            Trace::from_npz(path, &bytes, sequence_tokens)
        } else {
            Trace::from_bytes(path, &bytes)
        }
    }

    /// Reads a trace from the bytes of a file; `path` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Damaged`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Trace, TraceError> {
        let mut file = Bytes { path, all: bytes, at: 0 };
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            let found: String =
                bytes.iter().take(MAGIC.len()).map(|b| b.escape_ascii().to_string()).collect();
            let remedy = "give a file that `calypte trace` wrote, or an .npz with an array `experts`";
            return Err(file.damaged(0, "the letters CALYROUT", format!("{found:?}"), remedy));
        }
        file.at = MAGIC.len();
        let version = file.u32("the version")?;
        if ![VERSION, VERSION_GUESSED].contains(&version) {
            let remedy = "read it with the version of calypte that wrote it";
            let expected = format!("version {VERSION} or {VERSION_GUESSED}");
            return Err(file.damaged(MAGIC.len(), expected, version.to_string(), remedy));
        }
        let count = file.u32("the number of layers")?;
        if count == 0 || count > LAYERS_MAX {
            let expected = format!("1 to {LAYERS_MAX} layers");
            return Err(file.damaged(file.at - 4, expected, count.to_string(), RECORD_AGAIN));
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(file.take(32, "the fingerprint")?);
        let budget_bytes = file.u64("the expert budget")?;
        let predictor = if version == VERSION { String::new() } else { read_name(&mut file)? };
        let layers: Vec<TraceLayer> = (0..count).map(|_| read_layer(&mut file)).collect::<Result<_, _>>()?;
        let mut trace = Trace::new(layers);
        (trace.fingerprint, trace.budget_bytes, trace.predictor) = (fingerprint, budget_bytes, predictor);
        while read_step(&mut file, &mut trace)? {}
        let (at, steps) = (file.at, file.u64("the number of steps")?);
        if steps != trace.steps().len() as u64 {
            let expected = format!("the number of steps, {}", trace.steps().len());
            return Err(file.damaged(at, expected, steps.to_string(), RECORD_AGAIN));
        }
        if file.at != bytes.len() {
            let found = format!("{} more bytes", bytes.len() - file.at);
            return Err(file.damaged(file.at, "the end of the file", found, RECORD_AGAIN));
        }
        Ok(trace)
    }

    /// The content of a file of this format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let guessed = !self.predictor.is_empty();
        out.extend(if guessed { VERSION_GUESSED } else { VERSION }.to_le_bytes());
        out.extend((self.layers().len() as u32).to_le_bytes());
        out.extend(self.fingerprint);
        out.extend(self.budget_bytes.to_le_bytes());
        if guessed {
            let mut name = [0; PREDICTOR_BYTES_MAX];
            name.iter_mut().zip(self.predictor.bytes()).for_each(|(to, from)| *to = from);
            out.extend(name);
        }
        for layer in self.layers() {
            for word in [layer.number, layer.experts, layer.top_k, 0] {
                out.extend(word.to_le_bytes());
            }
            out.extend(layer.slot_bytes.to_le_bytes());
        }
        for (index, step) in self.steps().iter().enumerate() {
            let flag = if step.begins_sequence { BEGINS_SEQUENCE } else { 0 };
            out.extend((step.rows | flag).to_le_bytes());
            for (number, layer) in self.layers().iter().enumerate() {
                let ids = self.routed(index, number);
                if layer.experts <= ONE_BYTE_EXPERTS_MAX {
                    out.extend(ids.iter().map(|&id| id as u8));
                } else {
                    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
                }
            }
            if guessed && step.rows == 1 {
                write_expected(self.expected(index), &mut out);
            }
        }
        out.extend(0u32.to_le_bytes());
        out.extend((self.steps().len() as u64).to_le_bytes());
        out
    }
}

fn read_layer(file: &mut Bytes<'_>) -> Result<TraceLayer, TraceError> {
    let at = file.at;
    let mut word = |what| file.u32(what);
    let (number, experts, top_k) = (word("a layer")?, word("its experts")?, word("its experts per token")?);
    word("zero")?;
    let slot_bytes = file.u64("bytes of an expert")?;
    if experts == 0 || experts > EXPERTS_MAX || top_k == 0 || top_k > experts {
        let expected = format!("1 to {EXPERTS_MAX} experts and no more per token");
        return Err(file.damaged(at + 4, expected, format!("{experts} and {top_k}"), RECORD_AGAIN));
    }
    Ok(TraceLayer { number, experts, top_k, slot_bytes })
}

/// `false` at the end.
fn read_step(file: &mut Bytes<'_>, trace: &mut Trace) -> Result<bool, TraceError> {
    let head = file.u32("the rows of a step, or 0")?;
    if head == 0 {
        return Ok(false);
    }
    let step = Step { rows: head & !BEGINS_SEQUENCE, begins_sequence: head & BEGINS_SEQUENCE != 0 };
    let mut routed = Vec::with_capacity(trace.layers().len());
    for layer in trace.layers() {
        let width = if layer.experts <= ONE_BYTE_EXPERTS_MAX { 1 } else { 2 };
        // Neither factor exceeds 32 bits: the product of three fits 128, and what does not fit the file is refused.
        let count = u128::from(step.rows) * u128::from(layer.top_k) * width as u128;
        let at = file.at;
        let bytes = file.take(usize::try_from(count).unwrap_or(usize::MAX), "the experts of a step")?;
        let ids: Vec<u16> = match width {
            1 => bytes.iter().map(|&b| u16::from(b)).collect(),
            _ => bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect(),
        };
        if let Some(bad) = ids.iter().position(|&id| u32::from(id) >= layer.experts) {
            let expected = format!("an expert below {}", layer.experts);
            return Err(file.damaged(at + bad * width, expected, ids[bad].to_string(), RECORD_AGAIN));
        }
        routed.push(ids);
    }
    if !trace.push(step, &routed) {
        return Err(file.damaged(file.at, "a step with rows", "none", RECORD_AGAIN));
    }
    if !trace.predictor.is_empty() && step.rows == 1 {
        let at = file.at;
        let expected = read_expected(file, trace)?;
        if !trace.expect(expected) {
            let wanted = "guesses of later layers, their experts and probabilities from 0 to 1";
            return Err(file.damaged(at, wanted, "something else", RECORD_AGAIN));
        }
    }
    Ok(true)
}

/// The name of a predictor, which is not empty.
fn read_name(file: &mut Bytes<'_>) -> Result<String, TraceError> {
    let at = file.at;
    let bytes = file.take(PREDICTOR_BYTES_MAX, "the name of a predictor")?;
    let name: String = bytes.iter().take_while(|&&b| b != 0).map(|&b| char::from(b)).collect();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_graphic()) {
        return Err(file.damaged(at, "the name of a predictor", format!("{name:?}"), RECORD_AGAIN));
    }
    Ok(name)
}

fn write_expected(lists: &[Expected], out: &mut Vec<u8>) {
    out.extend((lists.len() as u32).to_le_bytes());
    for list in lists {
        for word in [list.after, list.layer, list.guesses.len() as u32] {
            out.extend((word as u16).to_le_bytes());
        }
        for guess in &list.guesses {
            out.extend((guess.expert as u16).to_le_bytes());
            out.extend(guess.probability.to_le_bytes());
        }
    }
}

/// What was guessed during a step. Whether it can be, the trace finds out.
fn read_expected(file: &mut Bytes<'_>, trace: &Trace) -> Result<Vec<Expected>, TraceError> {
    let (at, count) = (file.at, file.u32("the number of lists of guesses")? as usize);
    let layers = trace.layers().len();
    if count > layers * layers {
        return Err(file.damaged(
            at,
            format!("at most {}", layers * layers),
            count.to_string(),
            RECORD_AGAIN,
        ));
    }
    let mut lists = Vec::new();
    for _ in 0..count {
        let mut word = |what| file.u16(what).map(u32::from);
        let (after, layer) = (word("the layer that was routed")?, word("the layer that guesses are of")?);
        let mut list = Expected { after, layer, guesses: Vec::new() };
        for _ in 0..word("the number of guesses")? {
            let expert = u32::from(file.u16("an expert")?);
            let probability = f32::from_bits(file.u32("a probability")?);
            list.guesses.push(Guess { expert, tokens_ahead: 0, probability });
        }
        lists.push(list);
    }
    Ok(lists)
}
