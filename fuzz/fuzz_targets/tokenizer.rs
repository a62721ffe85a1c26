//! Fuzz target; the body says what must hold.

#![no_main]

#[path = "../bodies/tokenizer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
