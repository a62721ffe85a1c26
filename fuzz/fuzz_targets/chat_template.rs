//! Fuzz target; the body says what must hold.

#![no_main]

#[path = "../bodies/chat_template.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
