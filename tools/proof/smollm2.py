#!/usr/bin/env python3
"""Real weights: SmolLM2-135M-Instruct against llama.cpp and against a float32 reference.

    python smollm2.py perplexity --llama DIR      # 40 chunks of 512 tokens of Persuasion, int8 and f32 activations
    python smollm2.py reference                   # top-1 agreement over 2048 positions, and greedy texts
"""
import json
import os

import numpy as np

import common
import fetch
import ggufs

PPL_BOUND = 0.005           # relative
MARGIN = 0.5                # logits: below this the reference itself is undecided
AGREEMENT = 0.99
# At a fork the reference's own margin may be at most so many standard deviations of the noise that the arithmetic puts on
# the difference of its two likeliest logits, measured over all positions by this script. Of 320 greedy choices one beyond
# four would happen by chance once in fifty runs of the script if the noise were normal.
FORK_SIGMAS = 4
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,",
]
GREEDY_TOKENS = 64
KINDS = ("int8", "f32")


def perplexity(e, a, model, text):
    report = common.Report(f"Perplexity of SmolLM2-135M-Instruct Q4_1 over {a.chunks} chunks of {common.CHUNK} tokens")
    theirs, error, _ = e.llama_perplexity(model, text, a.chunks, ["--no-repack"])
    # With f32 activations, the weights too are widened to F32 first: the same products, several times faster.
    wide = e.path("smollm2-f32.gguf")
    if not os.path.exists(wide):
        ggufs.widen(model, wide)
    ours = {kind: e.score(path, text, a.chunks, ["--activations", kind])["ppl"] for kind, path in zip(KINDS, (model, wide))}
    rows = [("llama.cpp", f"{theirs:.4f} ± {error:.4f}", "1")]
    rows += [(f"calypte, {kind} activations", f"{ppl:.4f}", common.ratio(ppl, theirs)) for kind, ppl in ours.items()]
    report.table(("engine", "perplexity", "ratio"), rows)
    for kind, ppl in ours.items():
        off = abs(ppl / theirs - 1)
        report.bound(f"{kind}: within {PPL_BOUND:.1%} of llama.cpp", off <= PPL_BOUND, f"{off:.3%}")
    report.end()


def reference_proof(e, a, model, text):
    import reference
    report = common.Report("SmolLM2-135M-Instruct Q4_1 against the same weights in float32 (transformers)")
    ids = tokenizer(model).encode(open(text, encoding="utf-8").read()).ids[:a.chunks * common.CHUNK]
    f32 = reference.load(model, a.threads)
    want = [reference.logits(f32, ids[i:i + common.CHUNK]) for i in range(0, len(ids), common.CHUNK)]
    ids_file = e.path("reference-ids.txt")
    open(ids_file, "w").write(",".join(map(str, ids)))
    sigma = {}
    rows = []
    for kind in KINDS:
        out = e.path(f"logits-{kind}.safetensors")
        e.score(model, ids=ids_file, more=["--activations", kind, "--logits", out])
        s = compare(want, out)
        os.remove(out)
        sigma[kind] = s["sigma"]
        rows.append((kind, s["positions"], f"{s['same']:.3%}", s["decided"], f"{s['agree']:.3%}", f"{s['kl']:.2e}",
                     f"{s['sigma']:.2e}", f"{s['off']:.2e}"))
        report.bound(f"{kind}: top-1 agreement where the margin exceeds {MARGIN}", s["agree"] >= AGREEMENT, f"{s['agree']:.3%}")
    print()
    report.table(("activations", "positions", "same top-1", f"margin > {MARGIN}", "same there", "mean KL", "noise of the margin",
                  "largest difference"), rows)
    forks(e, report, reference, f32, tokenizer(model), model, sigma)
    report.end()


def compare(want, path):
    """Our logits, in one safetensors file, against the reference's, chunk by chunk."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))["logits"]
        start = f.tell()
    got = np.memmap(path, np.float32, "r", start, tuple(header["shape"]))
    assert len(got) == sum(map(len, want)), "the program scored another number of positions"
    total = {"same": 0, "decided": 0, "agree": 0, "kl": 0.0}
    noise, off, at = [], 0.0, 0
    for w in want:
        g = np.asarray(got[at:at + len(w)])
        at += len(w)
        two = np.argpartition(w, -2, axis=-1)[:, -2:]
        lead = lambda x: np.diff(np.take_along_axis(x, two, -1), axis=-1)[:, 0]
        margin, same = np.abs(lead(w)), w.argmax(-1) == g.argmax(-1)
        noise.append(lead(g) - lead(w))
        off = max(off, float(np.abs(w - g).max()))
        total["same"] += int(same.sum())
        total["decided"] += int((margin > MARGIN).sum())
        total["agree"] += int((same & (margin > MARGIN)).sum())
        total["kl"] += float(sum(kl(x, y) for x, y in zip(w, g)))
    n = len(got)
    return {"positions": n, "same": total["same"] / n, "decided": total["decided"], "agree": total["agree"] / total["decided"],
            "kl": total["kl"] / n, "sigma": float(np.concatenate(noise).std()), "off": off}


def kl(w, g):
    """Kullback-Leibler divergence of two rows of logits, in nats."""
    w, g = w.astype(np.float64), g.astype(np.float64)
    w, g = w - w.max(), g - g.max()
    w, g = w - np.log(np.exp(w).sum()), g - np.log(np.exp(g).sum())
    return (np.exp(w) * (w - g)).sum()


def forks(e, report, reference, f32, tok, model, sigma):
    """Greedy texts; where they leave the reference's, by how much the reference preferred its own token."""
    rows, worst = [], dict.fromkeys(KINDS, 0.0)
    for prompt in PROMPTS:
        ids = tok.encode(prompt).ids
        want, logits = reference.greedy(f32, ids, GREEDY_TOKENS)
        for kind in KINDS:
            got = e.run(model, ids, GREEDY_TOKENS, ["--activations", kind])
            n = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y), None)
            margin = 0.0 if n is None else float(logits[n].max() - logits[n][got[n]])
            worst[kind] = max(worst[kind], margin)
            where = "none" if n is None else f"token {n}: {tok.decode([want[n]])!r} or {tok.decode([got[n]])!r}"
            rows.append((prompt[:28].replace("\n", "\\n"), kind, where, "" if n is None else f"{margin:.4f}"))
    report.table(("prompt", "activations", f"fork within {GREEDY_TOKENS} tokens", "margin there"), rows)
    for kind in KINDS:
        limit = FORK_SIGMAS * sigma[kind]
        report.bound(f"{kind}: forks only where the reference's margin is below {FORK_SIGMAS} times the noise, {limit:.2e}",
                     worst[kind] <= limit, f"largest {worst[kind]:.2e}")


def tokenizer(path):
    """The file's own vocabulary and merges in the `tokenizers` library; split rule smollm: digits apart, then GPT-2's."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    r = gguf.GGUFReader(path)
    f = lambda key: r.fields["tokenizer.ggml." + key].contents()
    tokens, kinds = f("tokens"), f("token_type")
    merges = [tuple(m.split(" ")) for m in f("merges")]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds) if k == gguf.TokenType.CONTROL])
    return tok


def main():
    ap = common.parser(__doc__)
    ap.add_argument("what", choices=["perplexity", "reference"])
    ap.add_argument("--chunks", type=int, help=f"chunks of {common.CHUNK} tokens [40 for perplexity, 4 for reference]")
    a = ap.parse_args()
    a.chunks = a.chunks or {"perplexity": 40, "reference": 4}[a.what]
    e = common.Engines(a)
    model, text = fetch.model(a.work), fetch.text(a.work)
    {"perplexity": perplexity, "reference": reference_proof}[a.what](e, a, model, text)


if __name__ == "__main__":
    main()
