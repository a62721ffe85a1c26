#!/usr/bin/env python3
"""Every GGUF type on real weights: SmolLM2 quantised by llama.cpp to each, and its perplexity by both engines.

    python formats.py --llama DIR [--only Q4_K_M,Q6_K] [--chunks 8]

The source is SmolLM2-135M-Instruct with its weights dequantised to F32. Its width of 576 is no multiple of 256, so that
llama-quantize falls back per tensor in the K types: mixed files are the point. `+name=type` forces the type of some tensors.
Both engines round activations to 8 bits, in blocks of their own, which is what the ratio shows for the integer types.

With --exact nobody rounds: our engine gets f32 activations, and llama.cpp the same file with every weight dequantised by the
`gguf` package. One short chunk is then enough, as the perplexities have to be the same to 1e-4 (most are to 1e-6; broken models amplify).
"""
import os

import common
import fetch
import ggufs

BOUND = 0.005               # relative, as for the published file, over 8 chunks; over 2 rounding alone can come near it
EXACT_BOUND, EXACT_CHUNK = 1e-4, 128
# Quantised to two bits or less the model is broken: rounding moves its perplexity by any amount, and only --exact can tell.
BROKEN_PPL, BROKEN_BOUND = 100.0, float("inf")
DOWN = "+ffn_down"
TYPES = [
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
    f"Q8_0{DOWN}=q2_k", f"Q8_0{DOWN}=mxfp4", f"Q8_0{DOWN}=tq1_0", f"Q8_0{DOWN}=tq2_0",
]


def quantise(e, src, dst, kind):
    base, *forced = kind.split("+")
    words = [w for f in forced for w in ("--tensor-type", f)]
    e.llama("llama-quantize", *words, src, dst, base, e.args.threads)


def rounding(e, path, text, chunks):
    """(our perplexity, llama.cpp's), both with 8-bit activations where the weights are integers."""
    return e.score(path, text, chunks)["ppl"], e.llama_perplexity(path, text, chunks)[0]


def exact(e, path, text):
    wide = e.path("smollm2-quantised-wide.gguf")
    ggufs.widen(path, wide)
    theirs, _, _ = e.llama_perplexity(wide, text, 1, chunk=EXACT_CHUNK)
    os.remove(wide)
    return e.score(path, text, 1, ["--activations", "f32"], chunk=EXACT_CHUNK)["ppl"], theirs


def main():
    ap = common.parser(__doc__)
    ap.add_argument("--chunks", type=int, default=8)
    ap.add_argument("--only", help="types, separated by commas")
    ap.add_argument("--exact", action="store_true", help=f"without rounding, over one chunk of {EXACT_CHUNK} tokens")
    a = ap.parse_args()
    e = common.Engines(a)
    model, text = fetch.model(a.work), fetch.text(a.work)
    source, path = e.path("smollm2-f32.gguf"), e.path("smollm2-quantised.gguf")
    if not os.path.exists(source):
        ggufs.widen(model, source)
    how = f"one chunk of {EXACT_CHUNK} tokens, no rounding" if a.exact else f"{a.chunks} chunks of {common.CHUNK} tokens"
    report = common.Report(f"SmolLM2 in every GGUF type, {how}")
    rows = []
    for kind in a.only.split(",") if a.only else TYPES:
        try:
            quantise(e, source, path, kind)
            inside = ggufs.types(path)
            ours, theirs = exact(e, path, text) if a.exact else rounding(e, path, text, a.chunks)
        except RuntimeError as error:
            report.bound(f"{kind}: both engines run it", False, str(error)[-700:])
            continue
        off, limit = abs(ours / theirs - 1), BROKEN_BOUND if theirs > BROKEN_PPL else BOUND
        limit = EXACT_BOUND if a.exact else limit
        report.bound(f"{kind}: within {limit:g} of llama.cpp", off <= limit, f"{off:.1e} ({ours:.4f} and {theirs:.4f}; {inside})")
        rows.append((kind, inside, f"{ours:.4f}", f"{theirs:.4f}", common.ratio(ours, theirs)))
    print()
    report.table(("type", "types inside", "calypte", "llama.cpp", "ratio"), rows)
    report.end()


if __name__ == "__main__":
    main()
