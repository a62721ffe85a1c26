"""What the families with latent attention share on the GGUF side (not a family)."""


def config(cfg):
    """As the converter sees it: the cache holds one key head."""
    return cfg | {"num_key_value_heads": 1}


def meta(w, cfg):
    w.add_leading_dense_block_count(cfg.get("first_k_dense_replace", 0))
    if cfg.get("q_lora_rank") is not None:
        w.add_q_lora_rank(cfg["q_lora_rank"])
    w.add_kv_lora_rank(cfg["kv_lora_rank"])
    w.add_key_length(cfg["kv_lora_rank"] + cfg["qk_rope_head_dim"])
    w.add_value_length(cfg["kv_lora_rank"])
    w.add_key_length_mla(cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"])
    w.add_value_length_mla(cfg["v_head_dim"])
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_expert_shared_count(cfg["n_shared_experts"])
    if cfg.get("routed_scaling_factor") is not None:
        w.add_expert_weights_scale(cfg["routed_scaling_factor"])
    if cfg.get("norm_topk_prob"):
        w.add_expert_weights_norm(True)
    w.add_rope_dimension_count(cfg["qk_rope_head_dim"])
    r = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}
    if r.get("mscale_all_dim") is not None:
        w.add_rope_scaling_yarn_log_mul(0.1 * r["mscale_all_dim"])


def convert(cfg, tensors):
    """kv_b split into the key half, transposed, and the value half."""
    h, nope, v = cfg["num_attention_heads"], cfg["qk_nope_head_dim"], cfg["v_head_dim"]
    for name, a in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            yield name, a
            continue
        a = a.reshape(h, nope + v, -1)
        yield name.replace("kv_b_proj", "k_b_proj"), a[:, :nope].transpose(0, 2, 1)
        yield name.replace("kv_b_proj", "v_b_proj"), a[:, nope:]


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
