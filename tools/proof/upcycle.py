#!/usr/bin/env python3
"""Write a Mixture-of-Experts GGUF whose right answer is known: every expert is a copy of a dense model's feed-forward part.

    python upcycle.py SmolLM2-135M-Instruct.Q4_1.gguf moe.gguf --experts 32 --used 4 [--permute]

The router is random, and the weights that it gives add up to 1, so whatever it picks, the model computes what the dense one
does, up to the rounding of a weighted sum; with --used 1 to the last bit. With --permute every expert has its hidden neurons
in an order of its own (whole blocks of 32, so that the quantised bytes stay as they are): the same function from different
bytes, and a gate that meets another expert's down is noise. Architecture llama, as Mixtral files have it.
"""
import argparse
import os

import gguf
import numpy as np

import ggufs

BLOCK = 32                  # values in a block of Q4_0 to Q8_0: a unit of hidden neurons that can move as it is
ROUTER_GAIN = 2.0           # standard deviation of the router's logits for inputs of size 1


def stacked(tensor, orders, down):
    """A matrix once per expert. Hidden neurons are the rows of gate and up, and the columns of down."""
    data, (rows, cols) = np.asarray(tensor.data), ggufs.shape_of(tensor)
    per, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    assert BLOCK % per == 0, f"{tensor.name}: blocks of {per} values cannot be permuted by {BLOCK}"
    if down:
        units = data.view(np.uint8).reshape(rows, cols // BLOCK, size * (BLOCK // per))
        return np.stack([units[:, o] for o in orders])
    units = data.view(np.uint8).reshape(rows // BLOCK, -1)
    return np.stack([units[o] for o in orders])


def upcycle(src, dst, experts, used, permute=False, seed=1):
    reader = gguf.GGUFReader(src)
    tensors = {t.name: t for t in reader.tensors}
    get = lambda key: reader.fields["llama." + key].contents()
    width, hidden = get("embedding_length"), get("feed_forward_length")
    writer = gguf.GGUFWriter(dst, "llama")
    ggufs.copy_metadata(writer, reader)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    rng = np.random.Generator(np.random.SFC64(seed))
    out = []

    def same(t):
        out.append((t.name, ggufs.shape_of(t), t.tensor_type, lambda: np.asarray(t.data)))

    def layer(i):
        name = lambda part: f"blk.{i}.{part}.weight"
        for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"):
            same(tensors[name(part)])
        router = (rng.standard_normal((experts, width)) * ROUTER_GAIN / width**0.5).astype(np.float32)
        out.append((name("ffn_gate_inp"), router.shape, ggufs.Q.F32, lambda: router))
        blocks = hidden // BLOCK
        orders = [rng.permutation(blocks) if permute else np.arange(blocks) for _ in range(experts)]
        for part in ("gate", "up", "down"):
            t = tensors[name(f"ffn_{part}")]
            shape = (experts, *ggufs.shape_of(t))
            out.append((name(f"ffn_{part}_exps"), shape, t.tensor_type, lambda t=t, part=part: stacked(t, orders, part == "down")))

    for t in reader.tensors:
        if not t.name.startswith("blk."):
            same(t)
    for i in range(get("block_count")):
        layer(i)
    ggufs.write(writer, out)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("src")
    ap.add_argument("dst")
    ap.add_argument("--experts", type=int, default=8)
    ap.add_argument("--used", type=int, default=2)
    ap.add_argument("--permute", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    upcycle(a.src, a.dst, a.experts, a.used, a.permute, a.seed)
    print(a.dst, f"{os.path.getsize(a.dst) / 1e9:.2f} GB")
