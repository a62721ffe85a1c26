#!/usr/bin/env python3
"""A checkpoint -> (1) a Hugging Face directory with GLM-5's official tensor names, (2) one GGUF of arch `glm-dsa`.

Why both: transformers is the reference the training code is checked against, the GGUF is what the engine ships with.
In the GGUF every matrix is Q8_0; norms, biases, the router and the indexer's head weights are F32. Names and keys are those
llama.cpp's glm-dsa loader reads; the MTP layer is block 6 (`nextn.*`). Rotary weights need no permutation: both sides
rotate neighbouring pairs.

usage: export.py --ckpt RUN/ckpt-N.pt --tokenizer TOK/tokenizer.json [--hf DIR] [--gguf FILE]
"""
import argparse, json, os
import numpy as np
import torch
from model import Anna, Config

DESCRIPTION = ("Anna is a 14.8-million-parameter Mixture-of-Experts model of the GLM-5 architecture (MLA, sparse attention with a "
               "trained indexer, one MTP layer), trained from nothing on public-domain English for Calypte's tests and first steps.")


def load(path):
    ck = torch.load(path, map_location="cpu")
    m = Anna(Config(**ck["config"]))
    m.load_state_dict(ck["model"])
    return m.eval(), ck


def hf_config(c):
    return {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "vocab_size": c.vocab, "hidden_size": c.hidden,
            "intermediate_size": c.ff_dense, "moe_intermediate_size": c.ff_expert, "num_hidden_layers": c.n_layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.heads, "n_shared_experts": 1, "n_routed_experts": c.n_experts,
            "routed_scaling_factor": c.scale, "kv_lora_rank": c.kv_lora, "q_lora_rank": c.q_lora, "qk_rope_head_dim": c.rope,
            "v_head_dim": c.v, "qk_nope_head_dim": c.nope, "qk_head_dim": c.nope + c.rope, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": c.top_k, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "hidden_act": "silu", "max_position_embeddings": c.max_pos, "rms_norm_eps": c.eps, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.theta}, "rope_interleave": True, "attention_bias": False,
            "attention_dropout": 0.0, "index_topk": c.idx_topk, "index_head_dim": c.idx_dim, "index_n_heads": c.idx_heads,
            "indexer_types": ["full" if t == "F" else "shared" for t in c.idx_types], "first_k_dense_replace": c.n_dense,
            "num_nextn_predict_layers": 1, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "dtype": "float32"}


def hf_tensors(m):
    out = {}
    for k, v in m.state_dict().items():
        v = v.detach().float().contiguous()
        if k.endswith("experts.gate_up_proj"):
            for e in range(v.shape[0]):
                gate, up = v[e].chunk(2, 0)
                out[f"model.{k[:-12]}{e}.gate_proj.weight"] = gate.clone()
                out[f"model.{k[:-12]}{e}.up_proj.weight"] = up.clone()
        elif k.endswith("experts.down_proj"):
            for e in range(v.shape[0]):
                out[f"model.{k[:-9]}{e}.down_proj.weight"] = v[e].clone()
        else:
            out[k if k.startswith("lm_head") else "model." + k] = v.clone()
    return out


def write_hf(m, tok, where):
    from safetensors.torch import save_file
    os.makedirs(where, exist_ok=True)
    save_file(hf_tensors(m), os.path.join(where, "model.safetensors"), metadata={"format": "pt"})
    json.dump(hf_config(m.c), open(os.path.join(where, "config.json"), "w"), indent=1)
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
              open(os.path.join(where, "tokenizer_config.json"), "w"), indent=1)
    if tok:
        open(os.path.join(where, "tokenizer.json"), "w").write(open(tok).read())


def gguf_tensors(m):
    """[(name, f32 array, is_f32)] in file order."""
    c, sd, out = m.c, {k: v.detach().float().numpy() for k, v in m.state_dict().items()}, []
    q = lambda name, a: out.append((name, np.ascontiguousarray(a), False))
    f = lambda name, a: out.append((name, np.ascontiguousarray(a, np.float32), True))
    q("token_embd.weight", sd["embed_tokens.weight"])
    f("output_norm.weight", sd["norm.weight"])
    q("output.weight", sd["lm_head.weight"])
    for i in range(c.n_layers + 1):
        b, s = f"blk.{i}.", f"layers.{i}."
        a = s + "self_attn."
        f(b + "attn_norm.weight", sd[s + "input_layernorm.weight"])
        q(b + "attn_q_a.weight", sd[a + "q_a_proj.weight"])
        f(b + "attn_q_a_norm.weight", sd[a + "q_a_layernorm.weight"])
        q(b + "attn_q_b.weight", sd[a + "q_b_proj.weight"])
        q(b + "attn_kv_a_mqa.weight", sd[a + "kv_a_proj_with_mqa.weight"])
        f(b + "attn_kv_a_norm.weight", sd[a + "kv_a_layernorm.weight"])
        kvb = sd[a + "kv_b_proj.weight"].reshape(c.heads, c.nope + c.v, c.kv_lora)
        q(b + "attn_k_b.weight", kvb[:, :c.nope].transpose(0, 2, 1))       # [heads][kv_lora rows][nope columns]
        q(b + "attn_v_b.weight", kvb[:, c.nope:])                          # [heads][v rows][kv_lora columns]
        q(b + "attn_output.weight", sd[a + "o_proj.weight"])
        if c.full(i):
            x = a + "indexer."
            f(b + "indexer.k_norm.weight", sd[x + "k_norm.weight"])
            f(b + "indexer.k_norm.bias", sd[x + "k_norm.bias"])
            f(b + "indexer.proj.weight", sd[x + "weights_proj.weight"])
            q(b + "indexer.attn_k.weight", sd[x + "wk.weight"])
            q(b + "indexer.attn_q_b.weight", sd[x + "wq_b.weight"])
        f(b + "ffn_norm.weight", sd[s + "post_attention_layernorm.weight"])
        p = s + "mlp."
        if i < c.n_dense:
            for n in ("gate", "up", "down"):
                q(b + f"ffn_{n}.weight", sd[p + f"{n}_proj.weight"])
        else:
            f(b + "ffn_gate_inp.weight", sd[p + "gate.weight"])
            f(b + "exp_probs_b.bias", sd[p + "gate.e_score_correction_bias"])
            gu = sd[p + "experts.gate_up_proj"]
            q(b + "ffn_gate_exps.weight", gu[:, :c.ff_expert])
            q(b + "ffn_up_exps.weight", gu[:, c.ff_expert:])
            q(b + "ffn_down_exps.weight", sd[p + "experts.down_proj"])
            for n in ("gate", "up", "down"):
                q(b + f"ffn_{n}_shexp.weight", sd[p + f"shared_experts.{n}_proj.weight"])
        if i == c.n_layers:
            q(b + "nextn.eh_proj.weight", sd[s + "eh_proj.weight"])
            f(b + "nextn.enorm.weight", sd[s + "enorm.weight"])
            f(b + "nextn.hnorm.weight", sd[s + "hnorm.weight"])
            f(b + "nextn.shared_head_norm.weight", sd[s + "shared_head.norm.weight"])
    return out


def write_gguf(m, tok, path):
    import gguf
    c, w = m.c, gguf.GGUFWriter(path, "glm-dsa")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name("Anna")
    w.add_description(DESCRIPTION)
    w.add_license("MIT OR Apache-2.0")
    w.add_size_label("14.8M")
    w.add_languages(["en"])
    w.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))
    w.add_quantization_version(2)
    w.add_context_length(c.max_pos)
    w.add_embedding_length(c.hidden)
    w.add_block_count(c.n_layers + 1)
    w.add_head_count(c.heads)
    w.add_head_count_kv(1)
    w.add_rope_freq_base(c.theta)
    w.add_rope_dimension_count(c.rope)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_vocab_size(c.vocab)
    w.add_feed_forward_length(c.ff_dense)
    w.add_expert_count(c.n_experts)
    w.add_expert_used_count(c.top_k)
    w.add_expert_feed_forward_length(c.ff_expert)
    w.add_expert_shared_count(1)
    w.add_expert_weights_scale(c.scale)
    w.add_expert_weights_norm(True)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(c.n_dense)
    w.add_q_lora_rank(c.q_lora)
    w.add_kv_lora_rank(c.kv_lora)
    w.add_key_length(c.kv_lora + c.rope)
    w.add_value_length(c.kv_lora)
    w.add_key_length_mla(c.nope + c.rope)
    w.add_value_length_mla(c.v)
    w.add_uint32("glm-dsa.nextn_predict_layers", 1)
    w.add_uint32("glm-dsa.attention.indexer.head_count", c.idx_heads)
    w.add_uint32("glm-dsa.attention.indexer.key_length", c.idx_dim)
    w.add_uint32("glm-dsa.attention.indexer.top_k", c.idx_topk)
    # trunk layers only: llama.cpp refuses a longer array; the MTP layer's indexer shows by its tensors
    w.add_array("glm-dsa.attention.indexer.types", [c.full(i) for i in range(c.n_layers)])
    t = json.load(open(tok))
    ids = {i: s for s, i in t["model"]["vocab"].items()}
    special = {x["id"] for x in t["added_tokens"]}
    ids.update({x["id"]: x["content"] for x in t["added_tokens"]})
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([ids[i] for i in range(c.vocab)])
    w.add_token_types([int(gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL) for i in range(c.vocab)])
    w.add_token_merges([x if isinstance(x, str) else " ".join(x) for x in t["model"]["merges"]])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    w.add_add_bos_token(False)
    for name, a, plain in gguf_tensors(m):
        if plain:
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, gguf.quants.quantize(a.astype(np.float32), gguf.GGMLQuantizationType.Q8_0),
                         raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--hf")
    ap.add_argument("--gguf")
    a = ap.parse_args()
    torch.set_num_threads(1)
    m, ck = load(a.ckpt)
    print("step", ck["step"], "tokens", ck["tokens"])
    if a.hf:
        write_hf(m, a.tokenizer, a.hf)
    if a.gguf:
        tmp = a.gguf + ".tmp"
        write_gguf(m, a.tokenizer, tmp)
        os.replace(tmp, a.gguf)
        print(a.gguf, "%.3f MiB" % (os.path.getsize(a.gguf) / 2 ** 20))


if __name__ == "__main__":
    main()
