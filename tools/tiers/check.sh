#!/usr/bin/env bash
# The tests of the arithmetic on tiers that an x86-64 machine does not have: NEON with and without the dot product instruction
# on an emulated processor, WebAssembly with and without SIMD128 on Node. They compare every tier with the scalar reference,
# bit for bit. Takes about a quarter of an hour, most of it compilers.
#
# Needs, on Debian:  apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross nodejs    (Node 20 or later)
#                    rustup target add aarch64-unknown-linux-gnu wasm32-wasip1
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $here/wasi.mjs"

# check TIER TARGET [FLAGS]: all tests, among them that the tier is the one in use. Nothing is captured, since a failure on
# WebAssembly ends the program, and what it had to say with it.
check() {
    echo "== $1 on $2 ($(date +%T))"
    CALYPTE_ISA=$1 RUSTFLAGS=${3:-} cargo test -p calypte-kernels --lib --target "$2" -- --include-ignored --nocapture
}
aarch64_processor() {
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $1 -L /usr/aarch64-linux-gnu"
}
aarch64_processor max
check dotprod aarch64-unknown-linux-gnu
aarch64_processor cortex-a53
check neon aarch64-unknown-linux-gnu
check simd128 wasm32-wasip1 "-C target-feature=+simd128"
check scalar wasm32-wasip1
