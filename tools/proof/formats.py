#!/usr/bin/env python3
"""Every GGUF type on real weights: SmolLM2 quantised by llama.cpp to each, and its perplexity by both engines.

    python formats.py --llama DIR [--only Q4_K_M,Q6_K] [--chunks 8]

The source is SmolLM2-135M-Instruct with its weights dequantised to F32. Its width of 576 is no multiple of 256, so that
llama-quantize falls back per tensor in the K types: mixed files are the point. `+name=type` forces the type of some tensors.
Two bounds per file. With f32 activations our perplexity differs from llama.cpp's by the rounding of its activations (q8_0 or
q8_K), which a model quantised to pieces amplifies; with int8 activations both round.
"""
import os

import common
import fetch
import ggufs

BOUND = 0.005               # relative, as for the published file
# Quantised to two bits or less the model is broken (perplexity in the hundreds and up), and rounding moves it far more.
BROKEN_PPL, BROKEN_BOUND = 100.0, 0.05
DOWN = "+ffn_down"
TYPES = [
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
    f"Q8_0{DOWN}=mxfp4", f"Q8_0{DOWN}=tq1_0", f"Q8_0{DOWN}=tq2_0",
]


def quantise(e, src, dst, kind):
    base, *forced = kind.split("+")
    # --tensor-type is a preference that a base type's own rules precede only where none is given.
    words = [w for f in forced for w in ("--tensor-type", f)]
    e.llama("llama-quantize", *words, src, dst, base, e.args.threads)


def main():
    ap = common.parser(__doc__)
    ap.add_argument("--chunks", type=int, default=8)
    ap.add_argument("--only", help="types, separated by commas")
    ap.add_argument("--activations", default="int8", help="int8 or f32 [int8]")
    a = ap.parse_args()
    e = common.Engines(a)
    model, text = fetch.model(a.work), fetch.text(a.work)
    source, path = e.path("smollm2-f32.gguf"), e.path("smollm2-quantised.gguf")
    if not os.path.exists(source):
        ggufs.widen(model, source)
    report = common.Report(f"SmolLM2 in every GGUF type, {a.chunks} chunks of {common.CHUNK} tokens, {a.activations} activations")
    rows = []
    for kind in a.only.split(",") if a.only else TYPES:
        try:
            quantise(e, source, path, kind)
            inside = ggufs.types(path)
            theirs, _, _ = e.llama_perplexity(path, text, a.chunks)
            ours = e.score(path, text, a.chunks, ["--activations", a.activations])["ppl"]
        except RuntimeError as error:
            report.bound(f"{kind}: both engines run it", False, str(error)[-700:])
            continue
        off, limit = abs(ours / theirs - 1), BROKEN_BOUND if theirs > BROKEN_PPL else BOUND
        report.bound(f"{kind}: within {limit:.1%} of llama.cpp", off <= limit, f"{off:.3%} ({ours:.4f} and {theirs:.4f}; {inside})")
        rows.append((kind, inside, f"{ours:.4f}", f"{theirs:.4f}", common.ratio(ours, theirs)))
    print()
    report.table(("type", "types inside", "calypte", "llama.cpp", "ratio"), rows)
    report.end()


if __name__ == "__main__":
    main()
