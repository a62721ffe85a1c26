"""glm4_moe (GLM-4.5 to 4.7): half of each head rotated, optional norms and biases, router as deepseek_v3."""
import gguf

from make_families import Fixture, rope_of

ARCH = "glm4moe"
BASE = dict(
    architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", attention_dropout=0.0, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, n_shared_experts=1, num_nextn_predict_layers=0, pad_token_id=0, rms_norm_eps=1e-5, use_cache=True,
)


def meta(w, cfg):
    part = rope_of(cfg)[0].get("partial_rotary_factor", cfg.get("partial_rotary_factor", 0.5))
    w.add_rope_dimension_count(int(cfg["head_dim"] * part))
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_expert_shared_count(cfg["n_shared_experts"])
    w.add_leading_dense_block_count(cfg["first_k_dense_replace"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_weights_scale(cfg["routed_scaling_factor"])
    w.add_expert_weights_norm(cfg["norm_topk_prob"])
    w.add_nextn_predict_layers(cfg["num_nextn_predict_layers"])


FIXTURES = {
    # GLM-4.5-like: biases and norms on q and k, one group; 4 heads x 16 with hidden 32
    "glm4_moe-a": Fixture(seed=16, config=BASE | dict(
        hidden_size=32, intermediate_size=24, moe_intermediate_size=10, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, attention_bias=True, use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, partial_rotary_factor=0.5, rope_scaling=None, rope_theta=1000000,
        tie_word_embeddings=False, vocab_size=64, eos_token_id=[62, 63], torch_dtype="bfloat16")),
    # neither biases nor norms, groups, weights not normalised, tied head, the rotated part left to its default
    "glm4_moe-b": Fixture(seed=80, config=BASE | dict(
        hidden_size=24, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=3,
        num_key_value_heads=1, head_dim=24, attention_bias=False, use_qk_norm=False, n_routed_experts=8, num_experts_per_tok=2, n_group=4,
        topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.5, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=True, vocab_size=64, eos_token_id=62, dtype="bfloat16")),
}
