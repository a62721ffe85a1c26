#!/usr/bin/env python3
"""Random MoE models against llama.cpp on the same files: every wrong expert, route or rotation changes the answer.

    python random_models.py --llama DIR --generator make_moe_gguf.py

The generator is called as `python GENERATOR random --arch ARCH --shape SHAPE ... --src SMOLLM2.gguf --out FILE` and must write
GGUF files with a tokenizer. Each model is compared twice: quantised as made, where both engines round activations in their own
way, and widened to F32, where neither rounds and the greedy ids must be equal. The glm-dsa file is widened once more with a
sparse attention of only 64 of the 512 positions, so that its indexer matters.
"""
import os
import subprocess
import sys

import common
import fetch
import ggufs
import llama_greedy

# Name, options of the generator. Small shapes: the F32 copy must stay small too.
MODELS = [
    ("qwen3moe Q4_K", "--arch qwen3moe --shape mini --layers 3 --experts 8 --used 2 --embd 512 --quant q4_k"),
    ("qwen3moe Q4_K + Q6_K", "--arch qwen3moe --shape mini --layers 3 --experts 8 --used 3 --embd 512 --quant q4_k --mix --seed 2"),
    ("olmoe Q4_0", "--arch olmoe --shape olmoe-7b --layers 2 --experts 8 --used 4 --ff 256 --quant q4_0"),
    ("glm-dsa Q4_K", "--arch glm-dsa --shape glm-mini --layers 5 --experts 8 --used 2 --embd 512 --ff 256 --quant q4_k"),
]
SPARSE = {"glm-dsa.attention.indexer.top_k": 64}
PROMPT_TOKENS, TOKENS = 96, 32
# The widened files leave only the order of f32 sums, and what the engines' exp and rotation differ by.
WIDE_PPL, QUANTISED_PPL = 1e-3, 0.02


def compare(e, a, report, name, path, text, wide):
    """One row; and the bounds."""
    more = ["--activations", "f32" if wide else "int8"]
    try:
        theirs, _, _ = e.llama_perplexity(path, text, a.chunks)
        prompt = e.llama_ids(path, text)[:PROMPT_TOKENS]
        want = llama_greedy.greedy(path, TOKENS, a.threads, prompt)
        ours = e.score(path, text, a.chunks, more)["ppl"]
        ids = e.run(path, prompt, TOKENS, more)
    except RuntimeError as error:
        report.bound(f"{name}: both engines run it", False, str(error)[-900:])
        return None
    off, limit = abs(ours / theirs - 1), WIDE_PPL if wide else QUANTISED_PPL
    report.bound(f"{name}: perplexity within {limit:.1%} of llama.cpp", off <= limit, f"{off:.2e}")
    fork = next((i for i, (x, y) in enumerate(zip(want["ids"], ids)) if x != y), None)
    same = TOKENS if fork is None else fork
    margin = "" if fork is None else "unknown" if want["margins"][fork] is None else f"{want['margins'][fork]:.4f}"
    if wide:
        report.bound(f"{name}: {TOKENS} greedy ids", fork is None, f"{same} the same" + (f", margin {margin}" if margin else ""))
    return (name, f"{ours:.3f}", f"{theirs:.3f}", common.ratio(ours, theirs), f"{same}/{TOKENS}", margin)


def main():
    ap = common.parser(__doc__)
    ap.add_argument("--generator", required=True, help="script that writes random models")
    ap.add_argument("--chunks", type=int, default=2)
    ap.add_argument("--only", help="models whose name holds this")
    a = ap.parse_args()
    e = common.Engines(a)
    src, text = fetch.model(a.work), fetch.text(a.work)
    report = common.Report(f"Random models against llama.cpp, {a.chunks} chunks of {common.CHUNK} tokens, {TOKENS} greedy ids")
    rows = []
    for name, options in MODELS:
        if a.only and a.only not in name:
            continue
        path, wide = e.path("random.gguf"), e.path("random-wide.gguf")
        words = [sys.executable, a.generator, "random", *options.split(), "--src", src, "--out", path]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        rows.append(compare(e, a, report, name, path, text, False))
        variants = [("widened to F32", {})] + ([("widened to F32, 64 of 512 attended", SPARSE)] if "glm-dsa" in name else [])
        for what, change in variants:
            ggufs.widen(path, wide, change)
            rows.append(compare(e, a, report, f"{name}, {what}", wide, text, True))
        for made in (path, wide):
            os.remove(made)
    print()
    report.table(("model", "perplexity, calypte", "llama.cpp", "ratio", "greedy ids equal", "margin at the fork (nats)"),
                 [r for r in rows if r])
    report.end()


if __name__ == "__main__":
    main()
