"""qwen2: biases on q, k, v; optional sliding window from layer `max_window_layers` on."""
from make_families import Fixture

ARCH = "qwen2"
BASE = dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_dropout=0.0, bos_token_id=1, hidden_act="silu",
    initializer_range=0.02, max_position_embeddings=512, rms_norm_eps=1e-6, use_cache=True,
)


def window(w, cfg):
    # No converter writes these for qwen2 and llama.cpp would not read them; published models leave the window off.
    w.add_sliding_window(cfg["sliding_window"])
    w.add_sliding_window_pattern([i >= cfg["max_window_layers"] for i in range(cfg["num_hidden_layers"])])


FIXTURES = {
    # 6 query heads on 2, head_dim 8, hidden 48; the window keys of published files, switched off
    "qwen2-a": Fixture(seed=18, config=BASE | dict(
        hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, vocab_size=96,
        tie_word_embeddings=True, rope_theta=1000000.0, sliding_window=16, max_window_layers=1, use_sliding_window=False,
        torch_dtype="bfloat16", eos_token_id=94)),
    # window of 16 from layer 1 of 3 on; two shards without an index
    "qwen2-b": Fixture(seed=2, store="f16", shards=2, index=False, meta=window, config=BASE | dict(
        hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, vocab_size=96,
        tie_word_embeddings=False, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, sliding_window=16, max_window_layers=1,
        use_sliding_window=True, dtype="float16", eos_token_id=[94, 95])),
}
