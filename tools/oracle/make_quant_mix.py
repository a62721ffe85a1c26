"""quant-mix: a qwen3moe GGUF whose matrices use Q8_0, Q4_0, Q4_1, Q4_K, Q6_K, F16, BF16 and F32 side by side.

    python make_quant_mix.py            # writes the directory (seed below is fixed)
    python make_quant_mix.py --search 3

The expected values come from transformers in float32 on gguf.dequantize of the same file, so an engine that keeps
float32 activations must match; one with 8-bit activations only roughly. Experts use other formats in layer 1 than
in layer 2, so expert sizes in bytes differ between layers. Layer 0 is dense, for K-quant rows in a down matrix.

The gguf package cannot quantise K-quants, so those blocks are made here: every bit pattern of the packed 6-bit
scales occurs, mins follow the scales so that the weights keep a mean near zero, and some block scales are negative.
"""
import os
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

import make_gqa as m
import oracle as o

CFG = m.QWEN | dict(
    hidden_size=256, intermediate_size=256, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32, vocab_size=128, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[0],
    rope_theta=1000000.0, torch_dtype="float32", eos_token_id=126,
)
SEED = 4
KINDS = {
    "token_embd": "Q8_0", "output": "Q6_K",
    "blk.0": dict(attn_q="Q8_0", attn_k="Q4_0", attn_v="Q4_1", attn_output="Q4_0", ffn_gate="Q4_K", ffn_up="Q4_K", ffn_down="Q6_K"),
    "blk.1": dict(attn_q="Q4_K", attn_k="F16", attn_v="BF16", attn_output="Q8_0", ffn_gate_exps="Q4_K", ffn_up_exps="Q6_K", ffn_down_exps="Q4_1"),
    "blk.2": dict(attn_q="Q6_K", attn_k="F32", attn_v="Q4_1", attn_output="F16", ffn_gate_exps="Q4_0", ffn_up_exps="Q4_1", ffn_down_exps="Q8_0"),
}


def kind_of(name):
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return KINDS[f"blk.{parts[1]}"].get(parts[2], "F32")
    return KINDS.get(parts[0], "F32")


def k_blocks(rng, shape, kind, std):
    """Random valid Q4_K or Q6_K rows with the wanted spread."""
    n = int(np.prod(shape)) // 256
    f16 = lambda x: x.astype(np.float16).view(np.uint8).reshape(n, 2)
    b = rng.integers(0, 256, (n, 144 if kind == "Q4_K" else 210), dtype=np.uint8)
    d = (0.75 + 0.5 * rng.random(n)) * np.where(rng.random(n) < 0.2, -1, 1)
    if kind == "Q4_K":  # d * scale * q - dmin * min, q 0..15
        d *= std / (4.6 * 36)
        sc = rng.integers(0, 64, (n, 8))
        mn = np.clip(sc + rng.integers(-4, 5, (n, 8)), 0, 63)
        b[:, 0:2], b[:, 2:4] = f16(d), f16(d * 7.5)
        b[:, 4:8] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
        b[:, 8:12] = mn[:, :4] | (mn[:, 4:] >> 4) << 6
        b[:, 12:16] = (sc[:, 4:] & 15) | (mn[:, 4:] & 15) << 4
    else:  # d * signed scale * (q - 32), q 0..63; the 16 scales are already random bytes
        b[:, 208:210] = f16(d * std / (18.5 * 74))
    return b.reshape(*shape[:-1], -1)


def build(seed, gguf_path):
    """Writes the GGUF and returns the same weights, dequantised, under the published names."""
    cfg = CFG
    m.SPECS["quant-mix"] = (seed, "f32", 1, cfg)
    _, w, ids = m.build("quant-mix", seed)
    rng = np.random.Generator(np.random.PCG64(seed + 1000))
    g = o.Gguf(gguf_path, "qwen3moe", "calypte fixture quant-mix")
    m.gguf_meta(g, cfg, "quant-mix")
    deq = {}
    for name, a, _ in m.gguf_tensors(cfg, w.t, "f32"):
        kind = kind_of(name)
        if kind == "F32":
            g.tensor(name, a)
            deq[name] = a
            continue
        if kind in ("Q4_K", "Q6_K"):
            raw = k_blocks(rng, a.shape, kind, a.std())
        else:
            raw = gguf.quantize(np.ascontiguousarray(a, dtype=np.float32), Q[kind])
        deq[name] = gguf.dequantize(raw, Q[kind]).reshape(a.shape)
        g.raw(name, raw, Q[kind])
    g.close()
    back(cfg, w.t, deq)
    return cfg, w, ids


def back(cfg, t, deq):
    """Puts dequantised GGUF tensors back under the published names."""
    hf = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
    t["model.embed_tokens.weight"], t["lm_head.weight"] = deq["token_embd.weight"], deq["output.weight"]
    for i in range(cfg["num_hidden_layers"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in hf.items():
            t[p + theirs + ".weight"] = deq[b + ours + ".weight"]
        for n in ("gate", "up", "down"):
            if m.is_sparse(cfg, i):
                for e in range(cfg["num_experts"]):
                    t[p + f"mlp.experts.{e}.{n}_proj.weight"] = deq[b + f"ffn_{n}_exps.weight"][e]
            else:
                t[p + f"mlp.{n}_proj.weight"] = deq[b + f"ffn_{n}.weight"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        scratch = os.path.join(tempfile.mkdtemp(), "x.gguf")
        o.search("quant-mix", lambda s: build(s, scratch), m.LIMITS, want=int(sys.argv[2]))
        sys.exit()
    path = os.path.join(o.FIXTURES, "quant-mix")
    os.makedirs(path, exist_ok=True)
    cfg, w, ids = build(SEED, os.path.join(path, "model.gguf"))
    with tempfile.TemporaryDirectory() as tmp:
        o.write_checkpoint(tmp, cfg, w)
        info, t, _ = o.record(tmp, cfg, ids, m.LIMITS)
    del t["final_hidden"]  # size
    o.put_expected(path, {"seed": SEED, "config": cfg} | info, t)
    print("quant-mix", info["smallest_margin"], info["smallest_router_gap"], "distinct", info["distinct_greedy_ids"])
