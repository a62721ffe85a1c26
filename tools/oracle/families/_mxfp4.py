"""MXFP4 (E2M1 values, 32 of them under one power of two) on disk as compressed-tensors publishes it: a matrix an expert,
`weight_packed` U8 [rows, cols / 2], the even column in the low nibble, and `weight_scale` U8 [rows, cols / 32], the exponent
plus 127. The blocks themselves also serve gpt_oss, whose files name and shape them otherwise."""
import re
import zlib

import numpy as np
import torch

BLOCK = 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
EXPERTS = r"\.experts\.\d+\.\w+_proj\.weight$"
_blocks = {}  # name -> (codes [rows, blocks, 32], scale bytes [rows, blocks]) of the values drawn last


def quantise(a):
    """[..., cols] -> codes [..., blocks, 32], scale bytes [..., blocks] and the values [..., cols] that they stand for."""
    b = a.reshape(*a.shape[:-1], -1, BLOCK)
    exp = np.floor(np.log2(np.abs(b).max(-1))) - 2  # largest magnitude lands in 4..8, cut to 6
    x = b / np.exp2(exp)[..., None]
    codes = np.abs(np.abs(x)[..., None] - E2M1).argmin(-1).astype(np.uint8)
    codes |= (np.signbit(x) << 3).astype(np.uint8)
    value = E2M1[codes & 7] * np.where(codes & 8, -1, 1) * np.exp2(exp)[..., None]
    return codes, (exp + 127).astype(np.uint8), value.reshape(a.shape)


def packed(codes):
    """Neighbours share a byte, the earlier one in the low nibble."""
    return torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)


def rounded(name, a):
    if not re.search(EXPERTS, name):
        return None
    # Blocks of very different size, so that a scale read from the wrong block shows.
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    sizes = rng.uniform(-1.5, 1.5, (a.shape[0], a.shape[1] // BLOCK))
    a = a * np.exp2(sizes).repeat(BLOCK, 1).astype(np.float32)
    codes, scales, value = quantise(a)
    _blocks[name] = codes, scales
    return value


def disk(cfg, tensors):
    out = {}
    for name, a in tensors.items():
        if re.search(EXPERTS, name):
            codes, scales = _blocks[name]
            out[name + "_packed"] = packed(codes).reshape(len(codes), -1)
            out[name + "_scale"] = torch.from_numpy(scales)
        else:
            out[name] = torch.from_numpy(a).to(torch.bfloat16)
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": BLOCK, "num_bits": 4, "observer": None,
               "observer_kwargs": {}, "scale_dtype": "torch.uint8", "strategy": "group", "symmetric": True, "type": "float", "zp_dtype": None}
    form = "mxfp4-pack-quantized"
    group = {"format": form, "input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    ignore = ["re:.*self_attn.*", r"re:.*mlp\.gate$", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"]
    quant = {"config_groups": {"group_0": group}, "format": form, "global_compression_ratio": None, "ignore": ignore,
             "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
             "transform_config": {}, "version": "0.20.1"}
    return cfg | {"quantization_config": quant}, out
