"""llama, what make_gqa.py leaves out: scaled rotation and biases."""
import math

import numpy as np

from make_families import Fixture, interleave, rope_of

ARCH = "llama"
BASE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", attention_dropout=0.0, bos_token_id=1, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, pretraining_tp=1, rms_norm_eps=1e-5, use_cache=True,
)


def meta(w, cfg):
    w.add_rope_dimension_count(cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"])


def rope_factors(cfg):
    """What llama.cpp divides the frequencies by, for rope_type llama3."""
    r, _ = rope_of(cfg)
    d = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
    context, low, high, factor = (r[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
    out = []
    for freq in 1 / np.float32(r["rope_theta"]) ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d)):
        length = np.float32(2 * math.pi) / np.float32(freq)
        if length < context / high:
            out.append(1.0)
        elif length > context / low:
            out.append(factor)
        else:
            smooth = (context / length - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def convert(cfg, t):
    if rope_of(cfg)[0]["rope_type"] == "llama3":
        yield "rope_freqs.weight", rope_factors(cfg)
    for n, a in t.items():
        if ".q_proj." in n:
            a = interleave(a, cfg["num_attention_heads"])
        elif ".k_proj." in n:
            a = interleave(a, cfg["num_key_value_heads"])
        yield n, a


FIXTURES = {
    # rope_type llama3 with a pair in each of its three ranges, as the published files spell it; biases on q, k, v, o
    "llama-c": Fixture(seed=8, config=BASE | dict(
        attention_bias=True, mlp_bias=False, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=96, tie_word_embeddings=True, rope_theta=500000.0,
        rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "llama3"},
        torch_dtype="bfloat16", eos_token_id=[93, 94])),
    # linear scaling in the oldest spelling, biases everywhere
    "llama-d": Fixture(seed=26, shards=2, config=BASE | dict(
        attention_bias=True, mlp_bias=True, hidden_size=40, intermediate_size=32, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, vocab_size=96, tie_word_embeddings=False, rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0},
        torch_dtype="bfloat16", eos_token_id=94)),
}
