//! Fuzz target; the body says what must hold.

#![no_main]

#[path = "../bodies/safetensors_header.rs"]
mod body;
#[path = "../bodies/places.rs"]
mod places;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
