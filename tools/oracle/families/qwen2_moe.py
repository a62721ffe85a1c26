"""qwen2_moe: softmax router beside a shared expert that a sigmoid gate scales; biases on q, k, v."""
from make_families import Fixture, linear

ARCH = "qwen2moe"
BASE = dict(
    architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", attention_dropout=0.0, bos_token_id=1, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, output_router_logits=False, rms_norm_eps=1e-6, router_aux_loss_coef=0.001, use_cache=True,
)


def meta(w, cfg):
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(cfg["shared_expert_intermediate_size"])


def more_keys(w, cfg):
    # Not written by the converter: llama.cpp never normalises here, knows no window and no dense layers.
    w.add_expert_weights_norm(cfg["norm_topk_prob"])
    w.add_sliding_window(cfg["sliding_window"])
    w.add_sliding_window_pattern([i % 2 == 0 and i < cfg["max_window_layers"] for i in range(cfg["num_hidden_layers"])])


FIXTURES = {
    "qwen2_moe-a": Fixture(seed=1, rules=((r"experts\.\d+\.down_proj", linear, 4.0),), config=BASE | dict(
        hidden_size=32, intermediate_size=40, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=96, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
        decoder_sparse_step=1, tie_word_embeddings=False, rope_theta=1000000.0, sliding_window=16, max_window_layers=1,
        use_sliding_window=False, torch_dtype="bfloat16", eos_token_id=94)),
    # layers 0 and 2 dense by step, 3 by list, so only layer 1 is sparse; no biases; window of 16 in layer 0 (even and
    # below max_window_layers)
    "qwen2_moe-b": Fixture(seed=12, store="f16", shards=2, meta=more_keys, config=BASE | dict(
        hidden_size=32, intermediate_size=24, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=1, vocab_size=96, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True,
        decoder_sparse_step=2, mlp_only_layers=[3], qkv_bias=False, tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, sliding_window=16, max_window_layers=2, use_sliding_window=True,
        dtype="float16", eos_token_id=94)),
}
