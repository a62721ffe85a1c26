//! What is remembered from run to run, with the bundled model: the first answer of the second run finds more in memory than that of the
//! first, a change of subject costs a little for a stated number of tokens, and files that cannot be believed are as none.
//!
//! Over memory a read is complete when it is submitted, and nobody guesses: hits and misses are the same on every machine.

mod common;

use std::path::{Path, PathBuf};

use calypte_engine::sampler::Sampling;
use calypte_engine::text::Specials;
use calypte_engine::{Engine, Event, Generation, IoMode, Options, Predictor, Size};
use common::never;

/// Tokens of an answer.
const ANSWER_TOKENS: usize = 64;
/// What a subject is: how a text of it begins.
const SUBJECTS: [&str; 2] = [
    "It was a bright cold morning, and the old captain walked along the shore with his daughter.",
    "Chapter IV. Of the nature of government, and of the rights of the people to make their own laws.",
];
/// After a change of subject, this many tokens of decoding …
const RECOVERY_TOKENS: usize = 32;
/// … and from then on the hit rate is below that of a run without a past by no more than this.
const RECOVERED_WITHIN: f64 = 0.01;

fn anna() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/anna/anna-q8_0.gguf")
}

fn options(cache: Size, usage: Option<&Path>) -> Options {
    Options {
        expert_cache: Some(cache),
        io: Some(IoMode::Memory),
        context: 1024,
        predictor: Predictor::none(),
        usage_directory: usage.map(Path::to_owned),
        ..Options::default()
    }
}

fn open(options: &Options) -> Engine {
    Engine::open(&anna(), options, &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Hits and misses, of the prompt and then of every token after it, in order.
fn answer(engine: &mut Engine, subject: &str, seed: u64, tokens: usize) -> Vec<(u64, u64)> {
    let prompt =
        engine.tokenizer().expect("a tokenizer").encode(subject, Specials::Plain).expect("encodable");
    let generation = Generation {
        tokens_max: 1,
        sampling: Sampling { temperature: 1.0, seed, ..Sampling::default() },
        ignore_eos: true,
        stops: Vec::new(),
    };
    let mut session = engine.session();
    let mut counts = Vec::new();
    let mut next = prompt;
    for token in 0..=tokens {
        let generation = Generation {
            sampling: Sampling { seed: seed + token as u64, ..generation.sampling },
            ..generation.clone()
        };
        let mut on_event = |_: Event<'_>| {};
        let outcome = engine
            .generate(&mut session, &next, &generation, &mut on_event, &mut (), &never())
            .unwrap_or_else(|e| panic!("{e}"));
        counts.push((outcome.stats.experts.hits, outcome.stats.experts.misses));
        next = outcome.ids;
    }
    counts
}

fn rate(counts: &[(u64, u64)]) -> f64 {
    let (hits, misses) = counts.iter().fold((0, 0), |(h, m), (hits, misses)| (h + hits, m + misses));
    hits as f64 / (hits + misses) as f64
}

#[test]
fn the_second_run_begins_better() {
    for cache in [Size::Percent(25.0), Size::Percent(50.0), Size::All] {
        let directory = tempfile::tempdir().expect("a directory");
        let run =
            || answer(&mut open(&options(cache, Some(directory.path()))), SUBJECTS[0], 1, ANSWER_TOKENS);
        let (first, second) = (run(), run());
        println!(
            "{cache:?}: whole answer {:.3}, then {:.3}; prompt {:.3}, then {:.3}; 16 tokens after it {:.3}, then {:.3}",
            rate(&first),
            rate(&second),
            rate(&first[..1]),
            rate(&second[..1]),
            rate(&first[1..17]),
            rate(&second[1..17]),
        );
        assert!(rate(&second) > rate(&first), "{cache:?}");
        let forgetful = answer(&mut open(&options(cache, None)), SUBJECTS[0], 1, ANSWER_TOKENS);
        assert_eq!(first, forgetful, "{cache:?}: the first run is one that remembers nothing");
    }
}

#[test]
fn a_change_of_subject_is_soon_forgotten() {
    for cache in [Size::Percent(25.0), Size::Percent(50.0)] {
        for (past, present) in [(0, 1), (1, 0)] {
            let directory = tempfile::tempdir().expect("a directory");
            let options_warm = options(cache, Some(directory.path()));
            for seed in 0..4 {
                answer(&mut open(&options_warm), SUBJECTS[past], 100 * seed, 256);
            }
            let warm = answer(&mut open(&options_warm), SUBJECTS[present], 7, 256);
            let cold = answer(&mut open(&options(cache, None)), SUBJECTS[present], 7, 256);
            let windows = |counts: &[(u64, u64)]| -> Vec<String> {
                counts[1..].chunks(RECOVERY_TOKENS).map(|window| format!("{:.3}", rate(window))).collect()
            };
            println!("{cache:?}, {past} to {present}: warm {:?}, cold {:?}", windows(&warm), windows(&cold));
            let after = |counts: &[(u64, u64)]| rate(&counts[1 + RECOVERY_TOKENS..]);
            assert!(
                after(&warm) >= after(&cold) - RECOVERED_WITHIN,
                "{cache:?}: {} instead of {}",
                after(&warm),
                after(&cold)
            );
        }
    }
}

#[test]
fn one_file_of_one_size_that_need_not_be_believed() {
    let directory = tempfile::tempdir().expect("a directory");
    let warm = options(Size::Percent(50.0), Some(directory.path()));
    let run = || answer(&mut open(&warm), SUBJECTS[0], 1, ANSWER_TOKENS);
    let first = run();
    let files = || -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(directory.path()).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
    };
    let [(path, content)] = &files()[..] else { panic!("{:?}", files()) };
    let catalog = calypte_engine::checkpoint::open(&anna()).expect("a model");
    let fingerprint: String = catalog.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(&fingerprint[..]));
    let second = run();
    assert_ne!(second, first);
    assert_eq!(files().len(), 1);
    assert_eq!(files()[0].1.len(), content.len());
    for spoilt in [&content[..content.len() - 1], b"", &[0; 4096]] {
        std::fs::write(path, spoilt).expect("writable");
        assert_eq!(run(), first, "as if there had been none");
        assert_eq!(files()[0].1, *content, "and replaced by what the first run wrote");
    }
}
