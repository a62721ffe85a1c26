//! Fuzz target; the body says what must hold.

#![no_main]

#[path = "../bodies/config_json.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
