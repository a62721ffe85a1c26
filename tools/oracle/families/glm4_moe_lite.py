"""glm4_moe_lite (GLM-4.7-Flash): latent attention of deepseek_v3 with a larger rms_norm_eps, converted to arch deepseek2."""
from families import _mla
from make_families import Fixture

ARCH = "deepseek2"
gguf_config, meta, convert = _mla.config, _mla.meta, _mla.convert
BASE = dict(
    architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", attention_bias=False, attention_dropout=0.0, hidden_act="silu",
    initializer_range=0.02, max_position_embeddings=512, n_shared_experts=1, norm_topk_prob=True, num_nextn_predict_layers=0,
    pad_token_id=0, rms_norm_eps=1e-5, tie_word_embeddings=False, topk_method="noaux_tc", use_cache=True, dtype="bfloat16",
)
FIXTURES = {
    "glm4_moe_lite-a": Fixture(seed=40, config=BASE | dict(
        hidden_size=32, intermediate_size=24, moe_intermediate_size=10, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8,
        num_experts_per_tok=3, n_group=1, topk_group=1, routed_scaling_factor=1.8, rope_scaling=None, rope_theta=1000000,
        partial_rotary_factor=1.0, scoring_func="sigmoid", vocab_size=64, eos_token_id=[62, 63])),
    # two dense layers by mlp_layer_types; the GGUF file does not say which gate (its correction biases do)
    "glm4_moe_lite-b": Fixture(seed=3, config=BASE | dict(
        hidden_size=24, intermediate_size=28, moe_intermediate_size=12, num_hidden_layers=3, first_k_dense_replace=2, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=20, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=8, n_routed_experts=6,
        num_experts_per_tok=2, n_group=3, topk_group=2, routed_scaling_factor=1.3, mlp_layer_types=["dense", "dense", "sparse"],
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, vocab_size=64, eos_token_id=62)),
}
