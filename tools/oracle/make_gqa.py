"""llama-a/b, mixtral-a/b and qwen3_moe-a/b: the families with grouped-query attention.

    python make_gqa.py                 # writes all six directories (seeds below are fixed)
    python make_gqa.py llama-a         # one of them
    python make_gqa.py --search llama-a 5   # finds the next five seeds that pass

The shapes are small but awkward on purpose: heads that do not divide the hidden size, widths that are
multiples of 32 only, one dense layer among the sparse ones, both settings of norm_topk_prob.
"""
import os
import sys

import numpy as np

import oracle as o

BASE = dict(
    hidden_act="silu", initializer_range=0.02, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
    use_cache=True, attention_dropout=0.0, bos_token_id=1,
)
LLAMA = BASE | dict(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, mlp_bias=False)
MIXTRAL = BASE | dict(architectures=["MixtralForCausalLM"], model_type="mixtral", router_aux_loss_coef=0.02, sliding_window=None, num_experts_per_tok=2)
QWEN = BASE | dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", rms_norm_eps=1e-6, attention_bias=False, sliding_window=None,
    use_sliding_window=False, router_aux_loss_coef=0.001,
)

# name -> (seed, storage type, shards, config)
SPECS = {
    "llama-a": (9, "bf16", 1, LLAMA | dict(
        hidden_size=96, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, vocab_size=192,
        tie_word_embeddings=True, rope_theta=100000.0, rope_scaling=None, torch_dtype="bfloat16", eos_token_id=190)),
    "llama-b": (9, "f32", 1, LLAMA | dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        vocab_size=96, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, dtype="float32", eos_token_id=94)),
    "mixtral-a": (10, "bf16", 2, MIXTRAL | dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=160,
        num_local_experts=8, rope_theta=1000000.0, torch_dtype="bfloat16", eos_token_id=158)),
    "mixtral-b": (7, "f16", 1, MIXTRAL | dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        vocab_size=128, num_local_experts=4, rope_theta=10000.0, torch_dtype="float16", eos_token_id=126)),
    "qwen3_moe-a": (12, "bf16", 1, QWEN | dict(
        hidden_size=32, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=160, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1],
        rope_theta=1000000.0, torch_dtype="bfloat16", eos_token_id=158)),
    "qwen3_moe-b": (12, "bf16", 3, QWEN | dict(
        hidden_size=32, intermediate_size=96, moe_intermediate_size=64, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
        head_dim=32, vocab_size=128, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[],
        rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16", eos_token_id=126)),
}
LIMITS = {"margin": 0.04, "router": 2e-3, "indexer": 0, "distinct": 20}


def is_sparse(cfg, i):
    if cfg["model_type"] == "llama":
        return False
    if cfg["model_type"] == "mixtral":
        return True
    return i not in cfg["mlp_only_layers"] and (i + 1) % cfg["decoder_sparse_step"] == 0


def head_dim(cfg):
    return cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]


def build(name, seed):
    _, store, _, cfg = SPECS[name]
    w = o.Weights(seed, store)
    h, v, d = cfg["hidden_size"], cfg["vocab_size"], head_dim(cfg)
    nq, nk = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    tied = cfg["tie_word_embeddings"]
    w.put("model.embed_tokens.weight", w.rng.standard_normal((v, h)) * (0.3 if tied else 1.0))
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        w.norm(p + "input_layernorm.weight", h)
        w.lin(p + "self_attn.q_proj.weight", nq * d, h, 1.5)
        w.lin(p + "self_attn.k_proj.weight", nk * d, h, 1.5)
        w.lin(p + "self_attn.v_proj.weight", nk * d, h, 1.5)
        w.lin(p + "self_attn.o_proj.weight", h, nq * d, 1.5)
        if cfg["model_type"] == "qwen3_moe":
            w.norm(p + "self_attn.q_norm.weight", d)
            w.norm(p + "self_attn.k_norm.weight", d)
        w.norm(p + "post_attention_layernorm.weight", h)
        if not is_sparse(cfg, i):
            f = cfg["intermediate_size"]
            w.lin(p + "mlp.gate_proj.weight", f, h, 2)
            w.lin(p + "mlp.up_proj.weight", f, h, 2)
            w.lin(p + "mlp.down_proj.weight", h, f, 2)
        elif cfg["model_type"] == "mixtral":
            f, n = cfg["intermediate_size"], cfg["num_local_experts"]
            w.lin(p + "block_sparse_moe.gate.weight", n, h, 2)
            for e in range(n):
                q = p + f"block_sparse_moe.experts.{e}."
                w.lin(q + "w1.weight", f, h, 2)
                w.lin(q + "w2.weight", h, f, 2)
                w.lin(q + "w3.weight", f, h, 2)
        else:
            f, n = cfg["moe_intermediate_size"], cfg["num_experts"]
            w.lin(p + "mlp.gate.weight", n, h, 2)
            for e in range(n):
                q = p + f"mlp.experts.{e}."
                w.lin(q + "gate_proj.weight", f, h, 2)
                w.lin(q + "up_proj.weight", f, h, 2)
                w.lin(q + "down_proj.weight", h, f, 2 if cfg["norm_topk_prob"] else 4)
    w.norm("model.norm.weight", h, flip=tied)
    if not tied:
        w.lin("lm_head.weight", v, h, 3)
    return cfg, w, o.prompt_ids(seed, v)


def interleave(a, heads):
    """HF rotate-half rows -> rows for interleaved rotation: of each head, rows 0, d/2, 1, d/2+1, ..."""
    return a.reshape(heads, 2, -1, a.shape[-1]).swapaxes(1, 2).reshape(a.shape)


def gguf_meta(g, cfg, name):
    t, d = cfg["model_type"], head_dim(cfg)
    theta = cfg.get("rope_theta") or cfg["rope_parameters"]["rope_theta"]
    w = g.w
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_rope_dimension_count(d)
    w.add_rope_freq_base(theta)
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    if t != "llama":
        w.add_expert_count(cfg.get("num_local_experts") or cfg["num_experts"])
        w.add_expert_used_count(cfg["num_experts_per_tok"])
    if t == "qwen3_moe":
        w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
        w.add_expert_weights_norm(cfg["norm_topk_prob"])


def gguf_tensors(cfg, t, kind):
    """Yields (GGUF name, float32 array, wanted type)."""
    nq, nk = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    swap = interleave if cfg["model_type"] != "qwen3_moe" else lambda a, n: a
    yield "token_embd.weight", t["model.embed_tokens.weight"], kind
    for i in range(cfg["num_hidden_layers"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        yield b + "attn_norm.weight", t[p + "input_layernorm.weight"], "f32"
        yield b + "attn_q.weight", swap(t[p + "self_attn.q_proj.weight"], nq), kind
        yield b + "attn_k.weight", swap(t[p + "self_attn.k_proj.weight"], nk), kind
        yield b + "attn_v.weight", t[p + "self_attn.v_proj.weight"], kind
        yield b + "attn_output.weight", t[p + "self_attn.o_proj.weight"], kind
        if cfg["model_type"] == "qwen3_moe":
            yield b + "attn_q_norm.weight", t[p + "self_attn.q_norm.weight"], "f32"
            yield b + "attn_k_norm.weight", t[p + "self_attn.k_norm.weight"], "f32"
        yield b + "ffn_norm.weight", t[p + "post_attention_layernorm.weight"], "f32"
        if not is_sparse(cfg, i):
            for n in ("gate", "up", "down"):
                yield b + f"ffn_{n}.weight", t[p + f"mlp.{n}_proj.weight"], kind
            continue
        if cfg["model_type"] == "mixtral":
            q, names, n = p + "block_sparse_moe.", {"gate": "w1", "up": "w3", "down": "w2"}, cfg["num_local_experts"]
        else:
            q, names, n = p + "mlp.", {x: x + "_proj" for x in ("gate", "up", "down")}, cfg["num_experts"]
        yield b + "ffn_gate_inp.weight", t[q + "gate.weight"], "f32"
        for x, hf in names.items():
            yield b + f"ffn_{x}_exps.weight", np.stack([t[q + f"experts.{e}.{hf}.weight"] for e in range(n)]), kind
    yield "output_norm.weight", t["model.norm.weight"], "f32"
    if not cfg["tie_word_embeddings"]:
        yield "output.weight", t["lm_head.weight"], kind


def write_gguf(path, name, cfg, w):
    arch = "qwen3moe" if cfg["model_type"] == "qwen3_moe" else "llama"
    g = o.Gguf(os.path.join(path, "model.gguf"), arch, f"calypte fixture {name}")
    gguf_meta(g, cfg, name)
    for n, a, kind in gguf_tensors(cfg, w.t, w.store):
        g.tensor(n, a, kind)
    g.close()


def make(name):
    seed, _, shards, _ = SPECS[name]
    cfg, w, ids = build(name, seed)
    path = os.path.join(o.FIXTURES, name)
    o.write_checkpoint(path, cfg, w, shards)
    info, t, _ = o.record(path, cfg, ids, LIMITS)
    o.put_expected(path, {"seed": seed} | info, t)
    write_gguf(path, name, cfg, w)
    print(name, info["smallest_margin"], info.get("smallest_router_gap"), "distinct", info["distinct_greedy_ids"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        name, want = sys.argv[2], int(sys.argv[3])
        o.search(name, lambda s: build(name, s), LIMITS, want=want)
    else:
        for n in sys.argv[1:] or SPECS:
            make(n)
