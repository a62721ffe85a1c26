"""INT4 (32 integers around zero under one BF16) on disk as compressed-tensors' "pack-quantized" has it, in the words of
Kimi-K2-Thinking's config: a matrix an expert, `weight_packed` I32 [rows, cols / 8], value i of a word in its bits 4i to 4i + 3 with 8
added, `weight_scale` BF16 [rows, cols / 32] and `weight_shape` I64 [2]. value = integer * scale, not rounded again."""
import re
import zlib

import numpy as np
import torch

BLOCK = 32
EXPERTS = r"\.experts\.\d+\.\w+_proj\.weight$"
_blocks = {}  # name -> (integers [rows, cols], scales [rows, blocks]) of the values drawn last


def rounded(name, a):
    if not re.search(EXPERTS, name):
        return None
    # Blocks of very different size, so that a scale read from the wrong block shows.
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    b = a.reshape(len(a), -1, BLOCK) * np.exp2(rng.uniform(-1.5, 1.5, (len(a), a.shape[1] // BLOCK, 1))).astype(np.float32)
    scales = torch.from_numpy(np.abs(b).max(-1) / 7.5).to(torch.bfloat16)
    wide = scales.float().numpy()[..., None]
    integers = np.clip(np.rint(b / wide), -8, 7)
    _blocks[name] = integers.astype(np.int64).reshape(a.shape), scales
    return (integers * wide).reshape(a.shape)


def packed(integers):
    """Eight to a word, the first in its lowest bits."""
    words = ((integers.reshape(len(integers), -1, 8) + 8) << 4 * np.arange(8)).sum(-1)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def disk(cfg, tensors):
    out = {}
    for name, a in tensors.items():
        if re.search(EXPERTS, name):
            integers, scales = _blocks[name]
            out[name + "_packed"] = packed(integers)
            out[name + "_scale"], out[name + "_shape"] = scales, torch.tensor(a.shape)
        else:
            out[name] = torch.from_numpy(a).to(torch.float32 if "e_score" in name else torch.bfloat16)
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": BLOCK, "num_bits": 4, "observer": "minmax",
               "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int"}
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    quant = {"config_groups": {"group_0": group}, "format": "pack-quantized", "ignore": ignore, "kv_cache_scheme": None,
             "quant_method": "compressed-tensors", "quantization_status": "compressed"}
    return cfg | {"quantization_config": quant}, out
