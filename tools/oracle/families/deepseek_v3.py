"""deepseek_v3: latent attention, sigmoid router with groups and correction bias; FP8 and INT4 as published."""
import torch

from families import _fp8, _int4, _mla
from make_families import Fixture

ARCH = "deepseek2"
gguf_config, meta, convert = _mla.config, _mla.meta, _mla.convert
# Published files hold the router matrix in bf16 and only the correction bias in f32.
BASE = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", attention_bias=False, attention_dropout=0.0, bos_token_id=0,
    ep_size=1, hidden_act="silu", initializer_range=0.02, moe_layer_freq=1, n_shared_experts=1, norm_topk_prob=True, rms_norm_eps=1e-6,
    scoring_func="sigmoid", tie_word_embeddings=False, topk_method="noaux_tc", use_cache=True, torch_dtype="bfloat16",
)


def with_draft(cfg, tensors):
    """Adds the draft layer that published files carry behind the last layer, filled with noise nobody may read."""
    last, n = cfg["num_hidden_layers"] - 1, cfg["num_hidden_layers"]
    out = {k: torch.from_numpy(v).to(torch.float32 if "e_score" in k else torch.bfloat16) for k, v in tensors.items()}
    noise = torch.Generator().manual_seed(5)
    draw = lambda like: torch.randn(like.shape, generator=noise).to(like.dtype)
    for k in [k for k in out if k.startswith(f"model.layers.{last}.")]:
        out[k.replace(f"layers.{last}.", f"layers.{n}.")] = draw(out[k])
    h = cfg["hidden_size"]
    for k in ("enorm", "hnorm", "shared_head.norm"):
        out[f"model.layers.{n}.{k}.weight"] = draw(torch.empty(h, dtype=torch.bfloat16))
    out[f"model.layers.{n}.eh_proj.weight"] = draw(torch.empty(h, 2 * h, dtype=torch.bfloat16))
    for k, like in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        out[f"model.layers.{n}.{k}.weight"] = out[f"{like}.weight"].clone()
    return cfg, out


def kimi(cfg, tensors):
    """Kimi-K2-Thinking's name for the model, which transformers does not know."""
    cfg, out = _int4.disk(cfg, tensors)
    return cfg | {"model_type": "kimi_k2"}, out


FIXTURES = {
    # yarn with both mscales, 4 groups of 2 experts of which 2 groups, 1 dense layer of 3
    "deepseek_v3-a": Fixture(seed=10, config=BASE | dict(
        hidden_size=32, intermediate_size=24, moe_intermediate_size=10, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=12, n_routed_experts=8,
        num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5, vocab_size=64, max_position_embeddings=2560, rope_theta=10000,
        rope_scaling=_mla.YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, num_nextn_predict_layers=0, eos_token_id=62)),
    # one group as in Kimi-K2, no yarn; behind the last layer a draft layer of noise, in the safetensors files only
    "deepseek_v3-b": Fixture(seed=72, shards=2, disk=with_draft, config=BASE | dict(
        hidden_size=24, intermediate_size=28, moe_intermediate_size=10, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=6,
        num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=2.827, vocab_size=64, max_position_embeddings=512,
        rope_theta=50000.0, rope_scaling=None, num_nextn_predict_layers=1, eos_token_id=[62, 63])),
    # FP8 blocks of 128 x 128 cut off at 136 and 132; safetensors only
    "deepseek_v3-fp8": Fixture(seed=18, gguf=False, rounded=_fp8.block_rounded, disk=_fp8.block_disk, config=BASE | dict(
        hidden_size=136, intermediate_size=132, moe_intermediate_size=20, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=4,
        num_experts_per_tok=2, n_group=2, topk_group=1, routed_scaling_factor=2.5, vocab_size=48, max_position_embeddings=512, rope_theta=10000,
        rope_scaling=None, num_nextn_predict_layers=0, eos_token_id=47)),
    # Kimi-K2-Thinking: routed experts in INT4, yarn whose two borders fall together; safetensors only
    "deepseek_v3-int4": Fixture(seed=53, gguf=False, rounded=_int4.rounded, disk=kimi, config=BASE | dict(
        hidden_size=64, intermediate_size=24, moe_intermediate_size=32, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=12, n_routed_experts=6,
        num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=2.827, vocab_size=48, max_position_embeddings=2048,
        rope_theta=50000.0, rope_scaling=_mla.YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        num_nextn_predict_layers=0, eos_token_id=47)),
}
