//! The timeline of a run says what its statistics say, span by span, and changes no answer.

mod common;

use std::sync::Arc;

use calypte_engine::timeline::{Lane, Span, Timeline};
use calypte_engine::{Engine, IoMode, Options, Predictor, Size};
use common::{Expected, fixtures, greedy};

const TOKENS: usize = 24;
/// The bundled model, from where the fixtures are.
const ANNA: &str = "../models/anna/anna-q8_0.gguf";

/// Spans of a lane in the order of their beginnings.
fn lane(spans: &[Span], lane: Lane) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.iter().filter(|span| span.lane == lane).copied().collect();
    spans.sort_by_key(|span| (span.start_ns, span.end_ns));
    spans
}

fn field(span: &Span, name: &str) -> u64 {
    span.field(name).unwrap_or_else(|| panic!("no {name}: {span:?}"))
}

fn sum(spans: &[Span], name: &str) -> u64 {
    spans.iter().map(|span| field(span, name)).sum()
}

/// A greedy run over the smallest cache, of a fixture or the bundled model: its timeline against its statistics. Spans that
/// must occur are `names`.
#[track_caller]
fn check(model: &str, options: Options, names: &[&str]) {
    let dir = fixtures().join(model);
    let prompt = match model {
        ANNA => (1..20).collect(),
        _ => Expected::read(&dir).prompt_ids,
    };
    let options = Options { expert_cache: Some(Size::Min), context: 64, ..options };
    let open = || Engine::open(&dir, &options, &mut ()).unwrap_or_else(|e| panic!("{e}"));
    let (want, _) = greedy(&mut open(), &prompt, TOKENS);
    let mut engine = open();
    let timeline = Arc::new(Timeline::start());
    engine.record(timeline.clone());
    let (got, _) = greedy(&mut engine, &prompt, TOKENS);
    assert_eq!(got, want, "recording changed the answer");
    let stats = engine.cache_stats();
    let layers: Vec<u64> = engine.expert_slots().into_iter().map(|(number, _)| number as u64).collect();
    drop(engine);
    let (spans, dropped) = timeline.take();
    assert_eq!(dropped, 0);

    let [steps, compute, stalls, reads] =
        [Lane::Step, Lane::Compute, Lane::Stall, Lane::Disk].map(|of| lane(&spans, of));
    assert!(spans.iter().all(|span| span.start_ns <= span.end_ns));
    // The last token is not computed: nobody asks what comes after it.
    assert_eq!(sum(&steps, "rows") as usize, prompt.len() + TOKENS - 1);
    assert_eq!((sum(&steps, "hits"), sum(&steps, "misses")), (stats.hits, stats.misses));
    let mut busy: Vec<Span> = compute.iter().chain(&stalls).copied().collect();
    busy.sort_by_key(|span| (span.start_ns, span.end_ns));
    for spans in [&steps, &busy] {
        for pair in spans.windows(2) {
            assert!(pair[0].end_ns <= pair[1].start_ns, "{pair:?} overlap");
        }
    }
    let step_of = |at_ns: u64| steps.iter().find(|step| (step.start_ns..=step.end_ns).contains(&at_ns));
    for span in &busy {
        let step = step_of(span.start_ns).unwrap_or_else(|| panic!("in no step: {span:?}"));
        assert!(span.end_ns <= step.end_ns, "{span:?} outlives {step:?}");
    }
    for read in &reads {
        assert!(step_of(read.start_ns).is_some(), "begun in no step: {read:?}");
        assert!(
            layers.contains(&field(read, "layer"))
                && field(read, "in_line_ns") <= read.end_ns - read.start_ns
        );
    }
    let stalled_ns: u64 = stalls.iter().map(|span| span.end_ns - span.start_ns).sum();
    assert_eq!(stalled_ns, stats.wait_ns);
    assert_eq!(sum(&steps, "stall_ns"), stats.wait_ns);
    let read_of =
        |of: &[&str]| -> Vec<Span> { reads.iter().filter(|read| of.contains(&read.name)).copied().collect() };
    // Every expert that was missed and no hint brought was read on demand.
    assert!(read_of(&["demand"]).len() as u64 <= stats.misses);
    if stats.prefetches == 0 {
        assert_eq!(sum(&reads, "bytes"), stats.bytes_read);
        assert_eq!(read_of(&["demand"]).len() as u64, stats.misses);
    } else {
        // Reads of the last step may have been under way when the statistics were taken.
        assert!(sum(&reads, "bytes") >= stats.bytes_useful);
        let hints = ["hint", "hint, then demand", "hint, called off", "unfinished read"];
        assert!(read_of(&hints).len() as u64 >= stats.prefetches);
    }
    for name in names {
        assert!(spans.iter().any(|span| span.name == *name), "no span is called {name}");
    }
}

#[test]
fn a_timeline_agrees_with_the_statistics() {
    let mla = ["attention", "router", "place", "shared expert", "experts", "reduce", "dense", "output head"];
    let pread = || Options { io: Some(IoMode::PreadBuffered), ..Options::default() };
    let no_guesses = || Options { predictor: Predictor::none(), ..pread() };
    check("glm_moe_dsa-a", no_guesses(), &mla);
    check("glm_moe_dsa-a", Options { io: None, ..no_guesses() }, &mla);
    check("glm_moe_dsa-a", Options { io: Some(IoMode::Memory), ..no_guesses() }, &mla);
    check(ANNA, no_guesses(), &mla);
    check(ANNA, Options::default(), &["lookahead", "judge", "stall"]);
    check("lfm2_moe-a", no_guesses(), &["short convolution", "attention", "experts"]);
    check("qwen3_moe-fp8", no_guesses(), &["arrange"]);
    let one_by_one = Options { prefill_chunk: std::num::NonZeroUsize::MIN, ..pread() };
    check("glm_moe_dsa-a", one_by_one, &["lookahead"]);
}

#[test]
fn a_cancelled_step_is_on_the_timeline_too() {
    let dir = fixtures().join("glm_moe_dsa-a");
    let prompt = Expected::read(&dir).prompt_ids;
    let options = Options { context: 64, ..Options::default() };
    let mut engine = Engine::open(&dir, &options, &mut ()).unwrap_or_else(|e| panic!("{e}"));
    let timeline = Arc::new(Timeline::start());
    engine.record(timeline.clone());
    let cancelled = std::sync::atomic::AtomicBool::new(true);
    let mut session = engine.session();
    engine
        .prefill(&mut session, &prompt, &mut |_, _| {}, &mut (), &cancelled)
        .expect_err("it was cancelled before it began");
    let (spans, _) = timeline.take();
    assert_eq!(spans.iter().map(|span| (span.lane, span.name)).collect::<Vec<_>>(), [(Lane::Step, "tokens")]);
}
