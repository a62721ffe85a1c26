"""olmoe: RMSNorm over the whole projected q and k (all heads together); optional clamp of q, k, v after it."""
from make_families import Fixture, linear

ARCH = "olmoe"
BASE = dict(
    architectures=["OlmoeForCausalLM"], model_type="olmoe", attention_bias=False, attention_dropout=0.0, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, output_router_logits=False, pad_token_id=1, rms_norm_eps=1e-5, router_aux_loss_coef=0.01, use_cache=True,
)


def clip(w, cfg):
    # Neither written by the converter nor read by llama.cpp for olmoe; published models have no clip.
    w.add_clamp_kqv(cfg["clip_qkv"])
    w.add_expert_weights_norm(cfg["norm_topk_prob"])


FIXTURES = {
    # as published: every head its own key, weights not normalised
    "olmoe-a": Fixture(seed=7, rules=((r"experts\.\d+\.down_proj", linear, 4.0),), config=BASE | dict(
        hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, vocab_size=96,
        num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None, tie_word_embeddings=False, rope_theta=10000.0,
        rope_scaling=None, torch_dtype="bfloat16", eos_token_id=94)),
    # 4 heads on 2, clamp at 1.25, normalised weights, no head
    "olmoe-b": Fixture(seed=13, shards=2, index=False, meta=clip, config=BASE | dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
        num_experts=4, num_experts_per_tok=3, norm_topk_prob=True, clip_qkv=1.25, tie_word_embeddings=True,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}, dtype="bfloat16", eos_token_id=94)),
}
