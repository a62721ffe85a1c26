//! `calypte score`: how likely a model finds a text.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use calypte_engine::score::{Scoring, negative_log_likelihood};
use calypte_engine::{Engine, EngineError, ErrorKind};
use serde_json::{Value, json};

use crate::args::ScoreArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::logits_file::LogitsFile;
use crate::output::{Out, grouped, hex, table};
use crate::progress::Progress;
use crate::prompt;
use crate::run::room;
use crate::timeline::{Timeline, record};

/// Scores and prints.
pub fn score(args: &ScoreArgs, timeline: Option<&Arc<Timeline>>) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let source = prompt::of_score(&args.source)?;
    let mut progress = Progress::new();
    let positions = source.positions_max();
    let positions = args.chunk.map_or(positions, |chunk| positions.min(chunk.get()));
    let options = args.learning.with(args.engine.options(positions));
    let mut engine = load(headers(args.model.as_deref())?, &options, &mut progress)?;
    record(&mut engine, timeline);
    let mut ids = source.tokens(&engine)?;
    if let Some(chunk) = args.chunk {
        cut(&mut ids, chunk, args.chunks, bos(&engine))?;
    }
    let size = args.chunk.map_or(ids.len(), NonZeroUsize::get);
    room(&engine, size)?;
    let vocab = engine.catalog().arch.vocab;
    let file = args.logits.as_deref();
    let mut file = file.map(|path| LogitsFile::create(path, ids.len(), vocab)).transpose()?;
    let outcome = interrupts.during(|cancelled| {
        let mut sink = |row: &[f32]| {
            if file.as_mut().is_some_and(|f| !f.row(row)) {
                cancelled.store(true, Ordering::SeqCst);
            }
        };
        let mut on_progress = |done, total| progress.tokens(done, total);
        match args.chunk {
            Some(chunk) => score_chunks(&mut engine, &ids, chunk, &mut sink, &mut on_progress, cancelled)
                .map(Scored::Chunks),
            None => engine.score(&ids, &mut sink, &mut on_progress, &mut (), cancelled).map(Scored::Whole),
        }
    });
    progress.clear();
    let scored = match outcome {
        Ok(scored) => scored,
        // The file, if it was the reason, tells why; otherwise it was Ctrl-C.
        Err(e) if e.kind() == ErrorKind::Cancelled => {
            return file.map_or(Ok(()), LogitsFile::give_up).and(Err(Failure::Interrupted));
        }
        Err(e) => return Err(e.into()),
    };
    if let Some(file) = file {
        file.finish()?;
    }
    if args.json {
        return Out::new().line(&scored.json().to_string());
    }
    Out::new().text(&table(&scored.rows().map(|(label, value)| (label.to_string(), value))))
}

/// What came of it.
enum Scored {
    /// Of the text as one.
    Whole(Scoring),
    /// Of its chunks.
    Chunks(Chunks),
}

impl Scored {
    fn json(&self) -> Value {
        match self {
            Scored::Whole(s) => json!({
                "tokens": s.tokens,
                "nll": s.nll,
                "ppl": s.ppl,
                "argmax": s.argmax,
                "logits_sha256": hex(&s.logits_sha256),
            }),
            Scored::Chunks(c) => json!({
                "tokens": c.argmax.len(),
                "counted": c.counted(),
                "nll": c.nll(),
                "ppl": c.nll().exp(),
                "argmax": c.argmax,
                "chunks": c.each.iter().map(Chunk::json).collect::<Vec<_>>(),
            }),
        }
    }

    /// For people.
    fn rows(&self) -> [(&'static str, String); 4] {
        let (nll, tokens, last) = match self {
            Scored::Whole(s) => {
                (s.nll, grouped(s.tokens as u64), ("logits", format!("sha256 {}", hex(&s.logits_sha256))))
            }
            Scored::Chunks(c) => {
                let counted = grouped(c.counted() as u64);
                let tokens = format!("{}, {counted} of them counted", grouped(c.argmax.len() as u64));
                (c.nll(), tokens, ("chunks", grouped(c.each.len() as u64)))
            }
        };
        let (nll, ppl) = (format!("{nll:.6} nats per token"), format!("{:.4}", nll.exp()));
        [("tokens", tokens), ("nll", nll), ("perplexity", ppl), last]
    }
}

/// Scores of chunks of the same length.
struct Chunks {
    each: Vec<Chunk>,
    /// The likeliest next token after each token.
    argmax: Vec<u32>,
}

/// The score of one chunk.
struct Chunk {
    /// Tokens counted.
    counted: usize,
    /// The sum of their negative log-likelihoods in nats.
    nll_sum: f64,
    /// Of all rows of the chunk.
    logits_sha256: [u8; 32],
}

impl Chunk {
    fn json(&self) -> Value {
        json!({ "nll": self.nll_sum / self.counted as f64, "logits_sha256": hex(&self.logits_sha256) })
    }
}

impl Chunks {
    fn counted(&self) -> usize {
        self.each.iter().map(|c| c.counted).sum()
    }

    /// Mean negative log-likelihood of the tokens counted, in nats.
    fn nll(&self) -> f64 {
        self.each.iter().map(|c| c.nll_sum).sum::<f64>() / self.counted() as f64
    }
}

/// The token that every chunk has to begin with, if the model expects one.
fn bos(engine: &Engine) -> Option<u32> {
    engine.tokenizer().ok().filter(|t| t.add_bos()).and_then(|t| t.bos())
}

/// Cuts a text to its first whole chunks and replaces the first token of each with `bos`.
fn cut(
    ids: &mut Vec<u32>,
    chunk: NonZeroUsize,
    most: Option<NonZeroUsize>,
    bos: Option<u32>,
) -> Result<(), Failure> {
    let size = chunk.get();
    let whole = ids.len() / size;
    let count = most.map_or(whole, |most| whole.min(most.get()));
    if count == 0 {
        return Err(Failure::Usage(format!(
            "the text has {} tokens, less than one chunk of {size}; give a longer text or a smaller --chunk",
            ids.len()
        )));
    }
    ids.truncate(count * size);
    if let Some(bos) = bos {
        ids.chunks_mut(size).filter_map(|c| c.first_mut()).for_each(|first| *first = bos);
    }
    Ok(())
}

/// Scores every chunk from an empty timeline. A token counts if at least half a chunk stands before it: those at the start
/// have little to go by, and would measure the length of the chunks rather than the model.
fn score_chunks(
    engine: &mut Engine,
    ids: &[u32],
    chunk: NonZeroUsize,
    sink: &mut dyn FnMut(&[f32]),
    progress: &mut dyn FnMut(usize, usize),
    cancelled: &AtomicBool,
) -> Result<Chunks, EngineError> {
    let size = chunk.get();
    let mut chunks = Chunks { each: Vec::new(), argmax: Vec::new() };
    for (index, tokens) in ids.chunks(size).enumerate() {
        let (mut position, mut counted, mut nll_sum) = (0, 0, 0.0);
        let mut row = |row: &[f32]| {
            sink(row);
            if let Some(next) = tokens.get(position + 1).filter(|_| position >= size / 2) {
                counted += 1;
                nll_sum += negative_log_likelihood(row, *next);
            }
            position += 1;
        };
        let mut on_progress = |done: usize, _| progress(index * size + done, ids.len());
        let scoring = engine.score(tokens, &mut row, &mut on_progress, &mut (), cancelled)?;
        chunks.argmax.extend(scoring.argmax);
        chunks.each.push(Chunk { counted, nll_sum, logits_sha256: scoring.logits_sha256 });
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_whole_chunks() {
        let cases = [
            (7, 3, None, None, Some(vec![0, 1, 2, 3, 4, 5])),
            (7, 3, Some(1), None, Some(vec![0, 1, 2])),
            (7, 3, Some(9), Some(99), Some(vec![99, 1, 2, 99, 4, 5])),
            (2, 3, None, None, None),
        ];
        let some = |n: usize| NonZeroUsize::new(n).expect("not zero");
        for (count, chunk, most, bos, want) in cases {
            let mut ids: Vec<u32> = (0..count).collect();
            let done = cut(&mut ids, some(chunk), most.map(some), bos);
            assert_eq!(done.is_ok().then_some(ids), want, "{count} {chunk} {most:?} {bos:?}");
        }
    }
}
