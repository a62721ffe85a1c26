"""quants/<type>.safetensors: random blocks of every block format and their values.

    raw     U8  [rows, bytes]   blocks back to back, as in a GGUF tensor
    values  F32 [rows, cols]    gguf.dequantize of them

All bytes are random; only the 16-bit float scales are drawn apart, so that they are finite but still cover
negative, subnormal, zero and the largest magnitudes. Row 0 has ordinary scales, row 1 wild ones.

INT4 is in no GGUF file; the engine makes its blocks of compressed-tensors' words: a BF16 scale, then Q4_0's 16 bytes. Its
largest magnitudes are 2^114, so that a sum of products with such weights is finite.
"""
import os
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q

import oracle as o

# type -> byte offsets of the float16 fields of a block
F16_AT = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "TQ1_0": [52], "TQ2_0": [64],
}
KINDS = [*F16_AT, "INT4"]
COLS, ROWS = 512, 4


def scales(rng, n, wild):
    a = (rng.standard_normal(n) * 0.02).astype(np.float16)
    if wild:
        bits = rng.integers(0, 1 << 16, n).astype(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0xBFFF  # clears the top exponent bit: finite
        bits[::5] = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0400], np.uint16)[np.arange(len(bits[::5])) % 7]
        a = bits.view(np.float16)
    return a.view(np.uint8).reshape(n, 2)


def blocks(rng, kind, rows, cols, wild_rows):
    qt = Q[kind]
    size, nbytes = gguf.GGML_QUANT_SIZES[qt]
    per = cols // size
    b = rng.integers(0, 256, (rows, per, nbytes), dtype=np.uint8)
    for r in range(rows):
        for at in F16_AT[kind]:
            b[r, :, at:at + 2] = scales(rng, per, r in wild_rows)
    if kind == "MXFP4":  # exponent byte 0xFF has no value
        b[:, :, 0] = np.where(rng.random((rows, per)) < 0.7, rng.integers(110, 135, (rows, per)), b[:, :, 0])
        b[:, :, 0] = np.minimum(b[:, :, 0], 254)
        b[0, 0, 0], b[0, 1, 0] = 0, 1
    return b.reshape(rows, per * nbytes)


def int4(rng, rows, cols, wild_rows):
    """Blocks and values of INT4."""
    b = rng.integers(0, 256, (rows, cols // 32, 18), dtype=np.uint8)
    bits = (torch.from_numpy(rng.standard_normal(b.shape[:2]) * 0.02).to(torch.bfloat16).view(torch.int16).numpy()).view(np.uint16)
    for r in wild_rows:
        wild = rng.integers(0, 1 << 16, bits.shape[1]).astype(np.uint16)
        wild[(wild & 0x7F80) > 0x7800] &= 0xBFFF  # clears the top exponent bit
        wild[::3] = np.array([0x0000, 0x8000, 0x0001, 0x807F, 0x787F, 0xF87F, 0x0080], np.uint16)[np.arange(len(wild[::3])) % 7]
        bits[r] = wild
    b[:, :, :2] = bits[..., None].view(np.uint8)
    scales = (bits.astype(np.uint32) << 16).view(np.float32)[..., None]
    integers = np.concatenate([b[:, :, 2:] & 15, b[:, :, 2:] >> 4], -1).astype(np.float32) - 8
    return b.reshape(rows, -1), (scales * integers).reshape(rows, cols)


def main():
    path = os.path.join(o.FIXTURES, "quants")
    os.makedirs(path, exist_ok=True)
    for kind in sys.argv[1:] or KINDS:
        rng = np.random.Generator(np.random.PCG64([41, KINDS.index(kind)]))
        if kind == "INT4":
            raw, values = int4(rng, ROWS, COLS, {1, 3})
        else:
            raw = blocks(rng, kind, ROWS, COLS, {1, 3})
            values = gguf.dequantize(raw, Q[kind]).astype(np.float32)
        assert values.shape == (ROWS, COLS) and np.isfinite(values).all(), kind
        o.save({"raw": torch.from_numpy(raw), "values": torch.from_numpy(values)}, path, f"{kind}.safetensors")
        print(kind, raw.shape, "largest", np.abs(values).max())


if __name__ == "__main__":
    main()
