"""Second opinion on the checkpoints in the formats of compressed-tensors: that library unpacks the files to the drawn values.

    pip install compressed-tensors==0.20.1     # not in requirements.txt
    python check_compressed_tensors.py [qwen3_moe-mxfp4 ...]

It reads `quantization_config`, says which modules are quantised and what tensors each of them has, and its own decompression
of the stored bytes must give, bit for bit, what the seed draws and the expected values were computed from.
"""
import json
import os
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file

import make_families as m
import oracle as o

NAMES = ["qwen3_moe-fp8", "qwen3_moe-fp8t", "qwen3_moe-mxfp4", "deepseek_v3-int4"]


def stored_tensors(path, module):
    """All but correction biases, which are compared by themselves."""
    return {n.removeprefix(module + "."): t for n, t in path.items() if n.startswith(module + ".") and not n.endswith("_bias")}


def check(name):
    family, fx = m.find(name)
    path = os.path.join(o.FIXTURES, name)
    with open(os.path.join(path, "config.json")) as f:
        config = QuantizationConfig.model_validate(json.load(f)["quantization_config"])
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(config.format)
    inputs = scheme.input_activations is not None and not scheme.input_activations.dynamic
    files = load_file(os.path.join(path, "model.safetensors"))
    drawn, _ = m.draw(family, fx, fx.seed, m.published(fx.config))
    quantised = 0
    for tensor, value in drawn.items():
        if not tensor.endswith(".weight"):  # correction biases
            assert torch.equal(files[tensor], torch.from_numpy(value)), f"{name}: {tensor}"
            continue
        module = tensor.removesuffix(".weight")
        stored = stored_tensors(files, module)
        # Matrices are weights of Linear modules, except the embedding and the router of DeepSeek's own code.
        linear = value.ndim == 2 and "embed_tokens" not in module and not (family.ARCH == "deepseek2" and module.endswith("mlp.gate"))
        if not linear or any(match_name(module, pattern) for pattern in config.ignore):
            assert set(stored) == {"weight"} and stored["weight"].dtype == torch.bfloat16, (tensor, set(stored))
            got = stored["weight"].float()
        else:
            wanted = {*compressor.compression_param_names(scheme), *(["input_scale"] if inputs else [])}
            assert set(stored) == wanted, (tensor, set(stored), wanted)
            exact = dict(stored)
            if config.format in ("float-quantized", "pack-quantized"):  # it computes in the type of the scale, which would round the product
                exact["weight_scale"] = exact["weight_scale"].float()
            got = compressor.decompress(exact, scheme)["weight"].float()
            quantised += 1
        assert torch.equal(got, torch.from_numpy(value)), f"{name}: {tensor}"
    assert quantised
    print(f"{name}: {quantised} matrices in {config.format}, the same values")


if __name__ == "__main__":
    for n in sys.argv[1:] or NAMES:
        check(n)
