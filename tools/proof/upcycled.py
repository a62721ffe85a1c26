#!/usr/bin/env python3
"""The upcycled MoE: streamed from disk at three cache sizes, it must score a text as the dense model does.

    python upcycled.py [--experts 8] [--chunks 20]
"""
import os

import gguf
import numpy as np

import common
import fetch
import ggufs
import upcycle

BOUND = 1e-3                # relative, on the perplexity
CACHES = ("min", "25%", "all")
FEW = 4                     # chunks where equality is to the last bit and more would say no more


def digests(scored):
    return [c["logits_sha256"] for c in scored["chunks"]]


def proofs(e, a, model, text):
    report = common.Report(f"SmolLM2-135M-Instruct upcycled to {a.experts} experts, {a.chunks} chunks of {common.CHUNK} tokens")
    dense = e.score(model, text, a.chunks)
    rows = [("dense", "", a.chunks, f"{dense['ppl']:.6f}", "1", digests(dense)[0][:12])]
    for used, permute in ((1, False), (2, True)):
        path = e.path(f"upcycled-{a.experts}-{used}{'-permuted' if permute else ''}.gguf")
        upcycle.upcycle(model, path, a.experts, used, permute)
        name = f"top {used}{', permuted' if permute else ''}"
        chunks = a.chunks if used > 1 else min(FEW, a.chunks)
        got = e.score(path, text, chunks, ["--expert-cache", CACHES[0]])
        want = mean_ppl(dense, chunks)
        rows.append((name, CACHES[0], chunks, f"{got['ppl']:.6f}", common.ratio(got["ppl"], want), digests(got)[0][:12]))
        if used == 1:
            report.bound(f"{name}: every logit is the dense model's to the last bit", digests(got) == digests(dense)[:chunks],
                         f"perplexity {got['ppl']:.10f} and {want:.10f}")
        off = abs(got["ppl"] / want - 1)
        report.bound(f"{name}: the dense model's perplexity to {BOUND}", off <= BOUND, f"{off:.2e}")
        for cache in CACHES[1:]:
            few = e.score(path, text, min(FEW, chunks), ["--expert-cache", cache])
            rows.append((name, cache, FEW, f"{few['ppl']:.6f}", "", digests(few)[0][:12]))
            report.bound(f"{name}: expert cache {cache} gives the digests of expert cache {CACHES[0]}",
                         digests(few) == digests(got)[:len(few["chunks"])], digests(few)[0])
        if permute:
            rows += wrong_bytes(e, report, path, text, got)
        os.remove(path)
    print()
    report.table(("model", "expert cache", "chunks", "perplexity", "ratio to dense", "digest of the first chunk"), rows)
    report.end()


def mean_ppl(scored, chunks):
    """The perplexity of the first chunks; every chunk counts as many tokens."""
    return float(np.exp(np.mean([c["nll"] for c in scored["chunks"][:chunks]])))


def wrong_bytes(e, report, path, text, right):
    """One byte of one expert changed, in place and back again: a 4-bit weight, then the high byte of a scale."""
    rows, chunks = [], 1
    t = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.15.ffn_down_exps.weight")
    _, block = gguf.GGML_QUANT_SIZES[t.tensor_type]
    cols = ggufs.shape_of(t)[-1]
    # Expert 3, row 100, block 5. Q4_1: scale, minimum (f16 each), then the weights.
    at = int(t.data_offset) + ((3 * ggufs.shape_of(t)[1] + 100) * (cols // 32) + 5) * block
    base = float(np.exp(right["chunks"][0]["nll"]))
    for what, offset, flip in (("a weight (lowest bit of its byte)", 4, 0x01), ("a scale (its exponent)", 1, 0x20)):
        flip_byte(path, at + offset, flip)
        got = e.score(path, text, chunks, ["--expert-cache", "25%"])
        flip_byte(path, at + offset, flip)
        moved = digests(got) != digests(right)[:chunks]
        rows.append((f"one byte of one expert: {what}", "25%", chunks, f"{got['ppl']:.6f}", common.ratio(got["ppl"], base),
                     digests(got)[0][:12]))
        report.bound(f"a wrong byte shows: {what}", moved, f"digest {'moved' if moved else 'did not move'}, perplexity by "
                     f"{got['ppl'] / base - 1:+.2e} over one chunk")
    back = e.score(path, text, chunks, ["--expert-cache", "25%"])
    report.bound("and with the byte restored the digest is back", digests(back) == digests(right)[:chunks], digests(back)[0])
    return rows


def flip_byte(path, at, bits):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ bits]))


if __name__ == "__main__":
    ap = common.parser(__doc__)
    ap.add_argument("--experts", type=int, default=8)
    ap.add_argument("--chunks", type=int, default=20)
    args = ap.parse_args()
    proofs(common.Engines(args), args, fetch.model(args.work), fetch.text(args.work))
