"""dots1 (dots.llm1): norms on each head of q and k, router and shared experts of deepseek_v3, windows by layer."""
from make_families import Fixture

ARCH = "dots1"
BASE = dict(
    architectures=["Dots1ForCausalLM"], model_type="dots1", attention_dropout=0.0, bos_token_id=None, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, use_cache=True,
)


def gguf_config(cfg):
    # The converter reads the config through the library's class, so absent groups count as 1. "noaux_tc" is what
    # published files call the sigmoid with a correction bias; without scoring_func no key is written.
    names = {"scoring_func": "sigmoid"} if "scoring_func" in cfg else {}
    return {"n_group": 1, "topk_group": 1} | cfg | names


def meta(w, cfg):
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_leading_dense_block_count(cfg["first_k_dense_replace"])
    w.add_expert_shared_count(cfg["n_shared_experts"])
    w.add_expert_weights_scale(cfg["routed_scaling_factor"])
    w.add_expert_weights_norm(cfg["norm_topk_prob"])


def window(w, cfg):
    # Not written by the converter: llama.cpp knows no window here.
    w.add_sliding_window(cfg["sliding_window"])
    w.add_sliding_window_pattern([t == "sliding_attention" for t in cfg["layer_types"]])


FIXTURES = {
    # the keys of the published file: as many key heads as query heads, no window, one group, 2 shared experts
    "dots1-a": Fixture(seed=8, config=BASE | dict(
        attention_bias=False, first_k_dense_replace=1, hidden_size=32, intermediate_size=24, moe_intermediate_size=8, moe_layer_freq=1,
        n_routed_experts=8, n_shared_experts=2, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=3, num_hidden_layers=2,
        num_key_value_heads=4, pretraining_tp=1, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000000, routed_scaling_factor=2.5,
        sliding_window=None, scoring_func="noaux_tc", tie_word_embeddings=False, use_sliding_window=False, vocab_size=64, eos_token_id=62,
        torch_dtype="bfloat16")),
    # 3 heads on 1, biases on q, k, v, o; window of 16 in layers 0 and 2; 4 groups of 2 experts of which 2; weights not
    # normalised; tied head; GGUF without expert_gating_func
    "dots1-b": Fixture(seed=126, shards=2, meta=window, config=BASE | dict(
        attention_bias=True, first_k_dense_replace=1, hidden_size=24, intermediate_size=20, moe_intermediate_size=8, n_group=4, topk_group=2,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=False, num_attention_heads=3, num_experts_per_tok=2, num_hidden_layers=3,
        num_key_value_heads=1, rms_norm_eps=1e-6, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, routed_scaling_factor=1.5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=16, max_window_layers=3,
        tie_word_embeddings=True, vocab_size=64, eos_token_id=[62, 63], dtype="bfloat16")),
}
