//! `calypte score`: how likely a model finds a text.

use std::sync::atomic::Ordering;

use calypte_engine::ErrorKind;
use serde_json::json;

use crate::args::ScoreArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::logits_file::LogitsFile;
use crate::output::{Out, grouped, hex, table};
use crate::progress::Progress;
use crate::prompt;
use crate::run::room;

/// Scores and prints.
pub fn score(args: &ScoreArgs) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let source = prompt::of_score(&args.source)?;
    let mut progress = Progress::new();
    let options = args.engine.options(source.positions_max());
    let mut engine = load(headers(args.model.as_deref())?, &options, &mut progress)?;
    let ids = source.tokens(&engine)?;
    room(&engine, ids.len())?;
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
        engine.score(&ids, &mut sink, &mut on_progress, &mut (), cancelled)
    });
    progress.clear();
    let scoring = match outcome {
        Ok(scoring) => scoring,
        // The file, if it was the reason, tells why; otherwise it was Ctrl-C.
        Err(e) if e.kind() == ErrorKind::Cancelled => {
            return file.map_or(Ok(()), LogitsFile::give_up).and(Err(Failure::Interrupted));
        }
        Err(e) => return Err(e.into()),
    };
    if let Some(file) = file {
        file.finish()?;
    }
    let digest = hex(&scoring.logits_sha256);
    if args.json {
        let object = json!({
            "tokens": scoring.tokens,
            "nll": scoring.nll,
            "ppl": scoring.ppl,
            "argmax": scoring.argmax,
            "logits_sha256": digest,
        });
        return Out::new().line(&object.to_string());
    }
    let rows = [
        ("tokens", grouped(scoring.tokens as u64)),
        ("nll", format!("{:.6} nats per token", scoring.nll)),
        ("perplexity", format!("{:.4}", scoring.ppl)),
        ("logits", format!("sha256 {digest}")),
    ];
    Out::new().text(&table(&rows.map(|(label, value)| (label.to_string(), value))))
}
