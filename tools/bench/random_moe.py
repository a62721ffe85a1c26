#!/usr/bin/env python3
"""Write a qwen3moe GGUF of random Q4_K weights, as large as wanted: something to stream when no real checkpoint is at hand.

    pip install gguf numpy                                   # from PyPI
    python random_moe.py big.gguf                            # 24 layers x 64 experts, 4.2 GB
    python random_moe.py small.gguf --layers 4 --experts 16

Matrices are made block by block: scales and minima are chosen so that values have mean 0 and a standard deviation of
1/sqrt(width), the nibbles are noise. There is no tokenizer; use --prompt-ids. The text it writes is nonsense, and its router
chooses more evenly than a trained one.
"""
import argparse
import gguf
import numpy as np

HIDDEN, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB, TOP_K = 2048, 768, 16, 4, 128, 32000, 8
BLOCK_VALUES, BLOCK_BYTES = 256, 144


def q4_k(rng, rows, cols):
    """Random Q4_K rows: value = d*sc*n - dmin*m with n uniform in 0..15 and m = sc, dmin = 7.5 d, so the mean is 0."""
    n = rows * cols // BLOCK_VALUES
    blocks = rng.integers(0, 256, (n, BLOCK_BYTES), dtype=np.uint8)
    d = np.full(n, 1 / (4.61 * 32 * cols ** 0.5), np.float16)      # sc = 32, and a uniform nibble deviates by 4.61
    blocks[:, 0:2] = d.view(np.uint8).reshape(n, 2)
    blocks[:, 2:4] = (d * np.float16(7.5)).view(np.uint8).reshape(n, 2)
    blocks[:, 4:12] = 32 | 128                                     # low six bits: 32; top two: bits 4-5 of sub-blocks 4-7
    blocks[:, 12:16] = 0                                           # low nibbles of sub-blocks 4-7
    return blocks.reshape(rows, -1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--layers", type=int, default=24)
    ap.add_argument("--experts", type=int, default=64)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    rng = np.random.Generator(np.random.SFC64(a.seed))
    w = gguf.GGUFWriter(a.out, "qwen3moe")
    w.add_name("random qwen3moe")
    w.add_context_length(32768)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(WIDTH * TOP_K)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_rope_dimension_count(HEAD_DIM)
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(VOCAB)
    w.add_expert_count(a.experts)
    w.add_expert_used_count(TOP_K)
    w.add_expert_feed_forward_length(WIDTH)
    makers = []

    def matrix(name, rows, cols, stack=0):
        row_bytes = cols // BLOCK_VALUES * BLOCK_BYTES
        shape = ((stack,) if stack else ()) + (rows, row_bytes)
        size = int(np.prod(shape))
        w.add_tensor_info(name, shape, np.dtype(np.uint8), size, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        makers.append(lambda: np.concatenate([q4_k(rng, rows, cols) for _ in range(stack or 1)]))

    def floats(name, shape, make):
        w.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        makers.append(lambda: make().astype(np.float32))

    def norm(name, n):
        floats(name, (n,), lambda: 1 + 0.1 * rng.standard_normal(n))

    matrix("token_embd.weight", VOCAB, HIDDEN)
    norm("output_norm.weight", HIDDEN)
    matrix("output.weight", VOCAB, HIDDEN)
    for i in range(a.layers):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", HIDDEN)
        matrix(p + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(p + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(p + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(p + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        norm(p + "attn_q_norm.weight", HEAD_DIM)
        norm(p + "attn_k_norm.weight", HEAD_DIM)
        norm(p + "ffn_norm.weight", HIDDEN)
        floats(p + "ffn_gate_inp.weight", (a.experts, HIDDEN),
               lambda: rng.standard_normal((a.experts, HIDDEN)) * (2 / HIDDEN ** 0.5))
        matrix(p + "ffn_gate_exps.weight", WIDTH, HIDDEN, a.experts)
        matrix(p + "ffn_up_exps.weight", WIDTH, HIDDEN, a.experts)
        matrix(p + "ffn_down_exps.weight", HIDDEN, WIDTH, a.experts)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for make in makers:
        w.write_tensor_data(np.ascontiguousarray(make()).view(np.uint8).reshape(-1))
    w.close()


main()
