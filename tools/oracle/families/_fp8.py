"""FP8 (E4M3) on disk in the three published forms: 128 x 128 blocks with `weight_scale_inv`, and one scale a row or a tensor
with `weight_scale`. Both names mean: value = code * scale."""
import re
import zlib

import numpy as np
import torch

BLOCK = 128
PLAIN = r"norm\w*\.weight$|embed_tokens|lm_head|mlp\.gate\.|bias$"
_codes = {}  # name -> (codes, scales) of the values drawn last; a second rounding could differ in the last bit


def is_fp8(name, a):
    return a.ndim == 2 and not re.search(PLAIN, name)


def _quantise(a, scale):
    codes = (torch.from_numpy(a) / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, (codes.float() * scale).numpy()


def block_rounded(name, a):
    if not is_fp8(name, a):
        return None
    rows, cols = (-(-n // BLOCK) for n in a.shape)
    # Blocks of very different size, so that a scale read from the wrong block shows.
    rng = np.random.Generator(np.random.PCG64(rows * 1000 + cols + len(name)))
    a = np.array(a)
    scales = torch.empty(rows, cols)
    full = torch.empty(a.shape)
    for r in range(rows):
        for c in range(cols):
            part = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            a[part] *= rng.uniform(0.4, 2.5)
            scales[r, c] = float(np.abs(a[part]).max()) / 448
            full[part] = scales[r, c]
    codes, values = _quantise(a, full)
    _codes[name] = codes, scales
    return values


def row_rounded(name, a):
    if not is_fp8(name, a):
        return None
    rng = np.random.Generator(np.random.PCG64(a.shape[0]))
    a = a * rng.uniform(0.4, 2.5, (a.shape[0], 1)).astype(np.float32)
    scales = torch.from_numpy(np.abs(a).max(1, keepdims=True) / 448).to(torch.bfloat16)
    codes, values = _quantise(a, scales.float())
    _codes[name] = codes, scales
    return values


def tensor_rounded(name, a):
    if not is_fp8(name, a):
        return None
    # Tensors of very different size, so that a scale of another tensor shows.
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    a = a * np.float32(rng.uniform(0.6, 1.6))
    scale = torch.tensor([float(np.abs(a).max()) / 448]).to(torch.bfloat16)
    codes, values = _quantise(a, scale.float())
    _codes[name] = codes, scale
    return values


def _disk(tensors, suffix):
    out = {}
    for name, a in tensors.items():
        if is_fp8(name, a):
            codes, scales = _codes[name]
            out[name], out[name + suffix] = codes, scales.contiguous()
        else:
            out[name] = torch.from_numpy(a).to(torch.float32 if "e_score" in name else torch.bfloat16)
    return out


def block_disk(cfg, tensors):
    quant = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    return cfg | {"quantization_config": quant}, _disk(tensors, "_scale_inv")


def _compressed_tensors(cfg, tensors, strategy, inputs):
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "strategy": strategy, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": weights | inputs, "output_activations": None}
    gates = [n.removesuffix(".weight") for n in tensors if n.endswith("mlp.gate.weight")]
    quant = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
             "kv_cache_scheme": None, "config_groups": {"group_0": group}, "ignore": ["lm_head", *gates]}
    return cfg | {"quantization_config": quant}


def row_disk(cfg, tensors):
    return _compressed_tensors(cfg, tensors, "channel", {"strategy": "token", "dynamic": True}), _disk(tensors, "_scale")


def tensor_disk(cfg, tensors):
    """With scales of the inputs, measured when the file was made, which only engines that round their activations use."""
    out = _disk(tensors, "_scale")
    for i, name in enumerate(n for n in tensors if is_fp8(n, tensors[n])):
        out[name.removesuffix("weight") + "input_scale"] = torch.tensor([0.01 + 0.003 * i], dtype=torch.bfloat16)
    return _compressed_tensors(cfg, tensors, "tensor", {"observer": "static_minmax"}), out
