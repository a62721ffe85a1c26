"""gpt_oss: sinks, biases everywhere, alternating windows, clamped SwiGLU; experts in MXFP4 (as published) or bf16."""
import re

import gguf
import numpy as np
import torch

from families import _mxfp4
from make_families import Fixture, linear_t

ARCH = "gpt-oss"
RULES = (
    (r"experts\.(gate_up|down)_proj$", linear_t, 3.0),  # large enough for the clamp to bite now and then
)
BASE = dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_dropout=0.0, hidden_act="silu", initial_context_length=64,
    initializer_range=0.02, max_position_embeddings=2048, output_router_logits=False, pad_token_id=0, rms_norm_eps=1e-5,
    router_aux_loss_coef=0.9, sliding_window=16, swiglu_limit=7.0, tie_word_embeddings=False, use_cache=True,
)
_blocks = {}  # name -> (codes [E, rows, blocks, 32], scale bytes [E, rows, blocks]) of the values drawn last


def mxfp4_rounded(name, a):
    """Experts only: [E, in, out] floats -> the nearest MXFP4 values; blocks run along `in`."""
    if not re.search(RULES[0][0], name):
        return None
    t = a.transpose(0, 2, 1)  # [E, out, in]: a published row is an output
    codes, scales, value = _mxfp4.quantise(t)
    _blocks[name] = codes, scales
    return value.transpose(0, 2, 1)


def mxfp4_disk(cfg, tensors):
    out = {}
    for name, a in tensors.items():
        if name in _blocks:
            codes, scales = _blocks[name]
            out[name + "_blocks"] = _mxfp4.packed(codes)
            out[name + "_scales"] = torch.from_numpy(scales)
        else:
            out[name] = torch.from_numpy(a).to(torch.bfloat16)
    skip = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return cfg | {"quantization_config": {"modules_to_not_convert": skip, "quant_method": "mxfp4"}}, out


def meta(w, cfg):
    w.add_sliding_window(cfg["sliding_window"])
    w.add_expert_feed_forward_length(cfg["intermediate_size"])


def convert(cfg, tensors):
    for name, a in tensors.items():
        if name.endswith("sinks"):
            yield name + ".weight", a
        elif "gate_up_proj" in name:
            bias = name.endswith("_bias")
            a = a if bias else a.transpose(0, 2, 1)
            for k, part in (("gate_proj", a[:, 0::2]), ("up_proj", a[:, 1::2])):
                yield name.replace("gate_up_proj_bias", k + ".bias") if bias else name.replace("gate_up_proj", k + ".weight"), part
        elif name.endswith("down_proj"):
            yield name + ".weight", a.transpose(0, 2, 1)
        elif name.endswith("down_proj_bias"):
            yield name.replace("down_proj_bias", "down_proj.bias"), a
        else:
            yield name, a


def put(g, name, a, fx):
    """Expert matrices of an MXFP4 fixture: ready-made blocks of 17 bytes, low nibbles = first half."""
    m = re.match(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight", name)
    if not (m and fx.rounded):
        return False
    key = f"model.layers.{m[1]}.mlp.experts." + ("down_proj" if m[2] == "down" else "gate_up_proj")
    codes, scales = _blocks[key]
    if m[2] != "down":
        rows = slice(0 if m[2] == "gate" else 1, None, 2)
        codes, scales = codes[:, rows], scales[:, rows]
    data = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], -1)
    g.raw(name, data.reshape(*data.shape[:2], -1), gguf.GGMLQuantizationType.MXFP4)
    return True


def pattern(w, cfg):
    w.add_sliding_window_pattern([t == "sliding_attention" for t in cfg["layer_types"]])


YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
FIXTURES = {
    # MXFP4. The base is chosen so that yarn's upper border is 2.0000: rounding it, as llama.cpp does, changes nothing.
    "gpt_oss-a": Fixture(seed=9, rounded=mxfp4_rounded, disk=mxfp4_disk, config=BASE | dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        num_local_experts=4, num_experts_per_tok=2, experts_per_token=2, attention_bias=True,
        layer_types=["sliding_attention", "full_attention"], rope_theta=10768, rope_scaling=YARN, vocab_size=64, eos_token_id=62,
        torch_dtype="bfloat16")),
    # bf16 fused and transposed as the library saves it; full layers first; borders of yarn not whole numbers
    "gpt_oss-b": Fixture(seed=4, meta=pattern, config=BASE | dict(
        hidden_size=24, intermediate_size=12, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=24,
        num_local_experts=4, num_experts_per_tok=2, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters=YARN | {"rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 16.0},
        vocab_size=64, eos_token_id=[62, 63], dtype="bfloat16")),
}
