"""glm_moe_dsa-a and -b: multi-head latent attention, the sparse-attention indexer and the sigmoid router.

    python make_glm.py                        # writes both directories (seeds below are fixed)
    python make_glm.py --search glm_moe_dsa-a 2   # finds the next two seeds that pass

a: the published layout in small (indexer types F F F S S S F S, three dense layers, a draft layer as layer 8).
b: what a does not cover: expert groups, norm_topk_prob false, indexer types given by frequency and offset,
   rope width 16, no draft layer.

The library ignores the draft (multi-token prediction) layer of this family, so it is composed here from the
library's own decoder layer: z = eh_proj([enorm(embed(token p+1)), hnorm(final hidden of p)]), one decoder layer,
shared_head.norm, lm_head. It is recorded twice: with the indexer, and with dense attention.
"""
import json
import os
import sys

import gguf
import numpy as np
import torch

import make_text
import make_templates
import oracle as o

CONFIG = dict(
    architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", attention_bias=False, attention_dropout=0.0, dtype="bfloat16",
    hidden_act="silu", initializer_range=0.02, max_position_embeddings=4096, rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=True,
    ep_size=1, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", indexer_rope_interleave=True, rope_interleave=True,
    pad_token_id=0, routed_scaling_factor=2.5, n_shared_experts=1,
)
SPECS = {
    "glm_moe_dsa-a": (109, CONFIG | dict(
        vocab_size=320, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=8, first_k_dense_replace=3,
        num_attention_heads=3, num_key_value_heads=3, head_dim=8, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=8,
        qk_head_dim=40, v_head_dim=32, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1, norm_topk_prob=True,
        index_topk=12, index_n_heads=16, index_head_dim=64, num_nextn_predict_layers=1, eos_token_id=[318, 319],
        indexer_types=["full", "full", "full", "shared", "shared", "shared", "full", "shared"],
        rope_parameters={"rope_theta": 1000000, "rope_type": "default"})),
    "glm_moe_dsa-b": (9, CONFIG | dict(
        vocab_size=192, hidden_size=32, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16,
        qk_head_dim=48, v_head_dim=32, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=False,
        index_topk=8, index_n_heads=16, index_head_dim=32, num_nextn_predict_layers=0, eos_token_id=190,
        index_topk_freq=2, index_skip_topk_offset=1, rope_parameters={"rope_theta": 10000, "rope_type": "default"})),
}
LIMITS = {"margin": 0.02, "router": 1e-3, "indexer": 1e-3, "distinct": 20, "experts_used": 0.75}


def types(cfg):
    """Indexer type per layer: the list, else full where max(i - offset + 1, 0) % freq == 0."""
    if "indexer_types" in cfg:
        return cfg["indexer_types"]
    f, off = cfg["index_topk_freq"], cfg["index_skip_topk_offset"]
    return ["shared" if max(i - off + 1, 0) % f else "full" for i in range(cfg["num_hidden_layers"])]


# The tokenizer of a; the last two are its end tokens.
ADDED = [("[gMASK]", True), ("<sop>", True), ("<|system|>", True), ("<|assistant|>", True), ("<|observation|>", True), ("<think>", False),
         ("</think>", False), ("<|endoftext|>", True), ("<|user|>", True)]


def layer(w, cfg, i, full, dense):
    p, h, H, r = f"model.layers.{i}.", cfg["hidden_size"], cfg["num_attention_heads"], w.rng
    ql, kl, nope, rope, v = cfg["q_lora_rank"], cfg["kv_lora_rank"], cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["v_head_dim"]
    a = p + "self_attn."
    w.norm(p + "input_layernorm.weight", h)
    w.lin(a + "q_a_proj.weight", ql, h)
    w.norm(a + "q_a_layernorm.weight", ql)
    w.lin(a + "q_b_proj.weight", H * (nope + rope), ql, 1.5)
    w.lin(a + "kv_a_proj_with_mqa.weight", kl + rope, h, 1.5)
    w.norm(a + "kv_a_layernorm.weight", kl)
    w.lin(a + "kv_b_proj.weight", H * (nope + v), kl, 1.5)
    w.lin(a + "o_proj.weight", h, H * v, 1.5)
    if full:
        x, n, d = a + "indexer.", cfg["index_n_heads"], cfg["index_head_dim"]
        w.lin(x + "wq_b.weight", n * d, ql, 2)
        w.lin(x + "wk.weight", d, h)
        w.norm(x + "k_norm.weight", d)
        w.put(x + "k_norm.bias", 0.3 * r.standard_normal(d))
        w.lin(x + "weights_proj.weight", n, h, 3)
    w.norm(p + "post_attention_layernorm.weight", h)
    m, f = p + "mlp.", cfg["moe_intermediate_size"]
    names = [("gate_proj", True), ("up_proj", True), ("down_proj", False)]
    if dense:
        for n, wide in names:
            w.lin(m + n + ".weight", *((cfg["intermediate_size"], h) if wide else (h, cfg["intermediate_size"])), 2)
        return
    w.lin(m + "gate.weight", cfg["n_routed_experts"], h, 2)
    # Spread widely, so that weights taken with the bias, or a choice made without it, give other numbers. With
    # groups the biased scores are partly negative: a rejected group must be minus infinity, not 0.
    n = cfg["n_routed_experts"]
    spread, offset = (0.5, 3) if cfg["n_group"] == 1 else (0.8, -0.5)
    bias = r.permutation(np.linspace(-spread, spread, n)) + 0.02 * r.standard_normal(n) + offset
    w.put(m + "gate.e_score_correction_bias", bias, keep_f32=True)
    for e in range(cfg["n_routed_experts"]):
        for n, wide in names:
            w.lin(m + f"experts.{e}.{n}.weight", *((f, h) if wide else (h, f)), 1.5)
    for n, wide in names:
        w.lin(m + f"shared_experts.{n}.weight", *((f, h) if wide else (h, f)), 2)


def build(name, seed):
    _, cfg = SPECS[name]
    w, h, v, L = o.Weights(seed, "bf16"), cfg["hidden_size"], cfg["vocab_size"], cfg["num_hidden_layers"]
    w.put("model.embed_tokens.weight", w.rng.standard_normal((v, h)))
    for i, t in enumerate(types(cfg)):
        layer(w, cfg, i, t == "full", i < cfg["first_k_dense_replace"])
    w.norm("model.norm.weight", h)
    w.lin("lm_head.weight", v, h, 3)
    if cfg["num_nextn_predict_layers"]:
        p = f"model.layers.{L}."
        w.norm(p + "enorm.weight", h)
        w.norm(p + "hnorm.weight", h)
        w.lin(p + "eh_proj.weight", h, 2 * h, 1.5)
        layer(w, cfg, L, True, False)
        w.norm(p + "shared_head.norm.weight", h)
    return cfg, w, o.prompt_ids(seed, v)


def draft(cfg, w, ids, trace_hidden, model, topk=None):
    """Logits of the draft layer for rows 0..T-2, and its trace."""
    from transformers import GlmMoeDsaConfig
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as lib

    c = {k: v for k, v in cfg.items() if k not in ("indexer_types", "architectures")}
    c |= dict(num_hidden_layers=1, indexer_types=["full"], mlp_layer_types=["sparse"])
    if topk:
        c["index_topk"] = topk
    cc = GlmMoeDsaConfig(**c)
    cc._attn_implementation = cc._experts_implementation = "eager"
    block = lib.GlmMoeDsaDecoderLayer(cc, 0).eval()
    p = f"model.layers.{cfg['num_hidden_layers']}."
    t = {k[len(p):]: torch.from_numpy(v) for k, v in w.t.items() if k.startswith(p)}
    E = range(cfg["n_routed_experts"])
    sd = {k: v for k, v in t.items() if k.startswith(("self_attn.", "input_l", "post_", "mlp.gate.", "mlp.shared"))}
    sd["mlp.experts.gate_up_proj"] = torch.stack([torch.cat([t[f"mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up")]) for e in E])
    sd["mlp.experts.down_proj"] = torch.stack([t[f"mlp.experts.{e}.down_proj.weight"] for e in E])
    block.load_state_dict(sd, strict=True)

    def norm(x, name):
        m = lib.GlmMoeDsaRMSNorm(cfg["hidden_size"], eps=cfg["rms_norm_eps"])
        m.weight.copy_(t[name + ".weight"])
        return m(x)

    x = torch.cat([norm(model.model.embed_tokens(torch.tensor([ids[1:]])), "enorm"), norm(trace_hidden[:, :-1], "hnorm")], -1)
    x = x @ t["eh_proj.weight"].T
    n = x.shape[1]
    pos = torch.arange(n)[None]
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
    seen = {}
    hooks = [block.mlp.gate.register_forward_hook(lambda m, a, out: seen.update(r=(m, out))),
             block.self_attn.indexer.register_forward_hook(lambda m, a, k, out: seen.update(i=(m, a, k, out)), with_kwargs=True)]
    y, _ = block(x, attention_mask=mask, position_ids=pos, position_embeddings=model.model.rotary_emb(x, pos))
    for k in hooks:
        k.remove()
    return model.lm_head(norm(y, "shared_head.norm"))[0], seen


def extras(cfg, w, ids):
    def more(model, trace):
        t = {"indexer_topk": o.indexer_sets(trace)}
        if not cfg["num_nextn_predict_layers"]:
            return {}, t
        t["mtp_logits"], seen = draft(cfg, w, ids, trace.hidden, model)
        t["mtp_logits_dense"], dense = draft(cfg, w, ids, trace.hidden, model, topk=1 << 20)
        rg, ig = o.router_choice(*seen["r"])[2], o.indexer_gap(*seen["i"])
        rd = o.router_choice(*dense["r"])[2]
        if min(rg, rd, ig) < 5e-4:
            raise o.Reject(f"draft: gap {min(rg, rd, ig):.1e}")
        top = t["mtp_logits"].topk(2).values
        return {
            "mtp_ids": t["mtp_logits"].argmax(-1).tolist(),
            "mtp_smallest_margin": o.named_min((top[:, 0] - top[:, 1]).tolist(), "row"),
            "mtp_router_gap": round(min(rg, rd), 6), "mtp_indexer_gap": round(ig, 6),
        }, t

    return more


def tokenizer(path):
    """Writes tokenizer.json and tokenizer_config.json beside the checkpoint."""
    t = make_text.train(320, "glm4", ADDED, crossing=28)
    make_text.write_json(path, "tokenizer.json", json.loads(t.to_str()))
    make_text.write_json(path, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "chat_template": make_templates.T["glm4"]})
    return t


def chat(model, t):
    """A conversation all the way: template, ids, greedy ids, text. Of a few questions, the one with the widest margins."""
    best = None
    for q in ("Who was Alice?", "How many years ago?", "Call me Ishmael.", "1234 pictures\nor conversations", "Hi there"):
        messages = [{"role": "user", "content": q}]
        text = make_templates.render("glm4", messages, True)
        ids = t.encode(text, add_special_tokens=False).ids
        g, margins, cached = o.greedy(model, ids, 16)
        assert g == cached
        if not best or min(margins) > best["smallest_margin"]:
            best = {"messages": messages, "rendered": text, "prompt_ids": ids, "greedy_ids": g, "text": t.decode(g, skip_special_tokens=False), "smallest_margin": round(min(margins), 5)}
    return best


def write_gguf(path, name, cfg, w, tok=None):
    a, t, L = "glm-dsa", w.t, cfg["num_hidden_layers"]
    g = o.Gguf(os.path.join(path, "model.gguf"), a, f"calypte fixture {name}")
    k, nope, rope, v, kl = g.w, cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["v_head_dim"], cfg["kv_lora_rank"]
    H, mtp = cfg["num_attention_heads"], cfg["num_nextn_predict_layers"]
    k.add_context_length(cfg["max_position_embeddings"])
    k.add_embedding_length(cfg["hidden_size"])
    k.add_block_count(L + mtp)
    k.add_feed_forward_length(cfg["intermediate_size"])
    k.add_head_count(H)
    k.add_head_count_kv(1)
    k.add_q_lora_rank(cfg["q_lora_rank"])
    k.add_kv_lora_rank(kl)
    k.add_key_length(kl + rope)
    k.add_value_length(kl)
    k.add_key_length_mla(nope + rope)
    k.add_value_length_mla(v)
    k.add_rope_dimension_count(rope)
    k.add_rope_freq_base(cfg["rope_parameters"]["rope_theta"])
    k.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    k.add_vocab_size(cfg["vocab_size"])
    k.add_leading_dense_block_count(cfg["first_k_dense_replace"])
    k.add_expert_count(cfg["n_routed_experts"])
    k.add_expert_used_count(cfg["num_experts_per_tok"])
    k.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    k.add_expert_shared_count(cfg["n_shared_experts"])
    k.add_expert_weights_scale(cfg["routed_scaling_factor"])
    k.add_expert_weights_norm(cfg["norm_topk_prob"])
    k.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if cfg["n_group"] > 1:
        k.add_expert_group_count(cfg["n_group"])
        k.add_expert_group_used_count(cfg["topk_group"])
    if mtp:
        k.add_nextn_predict_layers(mtp)
    k.add_indexer_head_count(cfg["index_n_heads"])
    k.add_indexer_key_length(cfg["index_head_dim"])
    k.add_indexer_top_k(cfg["index_topk"])
    k.add_array(a + ".attention.indexer.types", [x == "full" for x in types(cfg)])  # trunk layers only
    if tok:
        make_text.add_to_gguf(k, tok, "glm4", "<|endoftext|>", make_templates.T["glm4"])
        k.add_eot_token_id(tok.token_to_id("<|user|>"))
    g.tensor("token_embd.weight", t["model.embed_tokens.weight"], "bf16")
    g.tensor("output_norm.weight", t["model.norm.weight"])
    g.tensor("output.weight", t["lm_head.weight"], "bf16")
    plain = {
        "attn_norm": "input_layernorm", "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj", "indexer.k_norm": "self_attn.indexer.k_norm", "indexer.proj": "self_attn.indexer.weights_proj",
        "indexer.attn_k": "self_attn.indexer.wk", "indexer.attn_q_b": "self_attn.indexer.wq_b", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm",
        "nextn.eh_proj": "eh_proj", "nextn.shared_head_norm": "shared_head.norm",
    }
    for i in range(L + mtp):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        for ours, hf in plain.items():
            x = t.get(p + hf + ".weight")
            if x is not None:
                g.tensor(b + ours + ".weight", x, "f32" if x.ndim == 1 or ours in ("ffn_gate_inp", "indexer.proj") else "bf16")
        if p + "self_attn.indexer.k_norm.bias" in t:
            g.tensor(b + "indexer.k_norm.bias", t[p + "self_attn.indexer.k_norm.bias"])
        kv = t[p + "self_attn.kv_b_proj.weight"].reshape(H, nope + v, kl)
        g.tensor(b + "attn_k_b.weight", kv[:, :nope].swapaxes(1, 2), "bf16")
        g.tensor(b + "attn_v_b.weight", kv[:, nope:], "bf16")
        if p + "mlp.gate.weight" in t:
            g.tensor(b + "exp_probs_b.bias", t[p + "mlp.gate.e_score_correction_bias"])
            for n in ("gate", "up", "down"):
                g.tensor(b + f"ffn_{n}_exps.weight", np.stack([t[p + f"mlp.experts.{e}.{n}_proj.weight"] for e in range(cfg["n_routed_experts"])]), "bf16")
    g.close()


def make(name):
    seed = SPECS[name][0]
    cfg, w, ids = build(name, seed)
    path = os.path.join(o.FIXTURES, name)
    o.write_checkpoint(path, cfg, w)
    model = o.load(path)
    info, t, _ = o.record(path, cfg, ids, LIMITS, model, extras(cfg, w, ids))
    tok = None
    if name.endswith("-a"):
        tok = tokenizer(path)
        info["chat"] = chat(model, tok)
    o.put_expected(path, {"seed": seed} | info, t)
    write_gguf(path, name, cfg, w, tok)
    print(name, {k: v for k, v in info.items() if "gap" in k or "smallest" in k or "distinct" in k})


def find(name, want, start=1):
    current = {}

    def b(seed):
        current["w"] = build(name, seed)
        return current["w"]

    def more(model, trace):
        cfg, w, ids = current["w"]
        return extras(cfg, w, ids)(model, trace)

    return o.search(name, b, LIMITS, more=more, want=want, start=start)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        find(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    else:
        for n in sys.argv[1:] or SPECS:
            make(n)
