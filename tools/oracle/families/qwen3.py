"""qwen3: RMSNorm over each head of q and k before the rotation; head_dim is a key of its own."""
from families.qwen2 import window
from make_families import Fixture

ARCH = "qwen3"
BASE = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", attention_dropout=0.0, bos_token_id=1, hidden_act="silu",
    initializer_range=0.02, max_position_embeddings=512, rms_norm_eps=1e-6, use_cache=True,
)
FIXTURES = {
    # 4 heads of 16 on 2 with hidden 32
    "qwen3-a": Fixture(seed=11, shards=2, config=BASE | dict(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=96,
        tie_word_embeddings=False, attention_bias=False, rope_theta=1000000, rope_scaling=None, sliding_window=None, max_window_layers=2,
        use_sliding_window=False, torch_dtype="bfloat16", eos_token_id=94)),
    # 3 heads of 8 on 1; biases on q, k, v, o; window of 16 from layer 1 on
    "qwen3-b": Fixture(seed=319, store="f32", meta=window, config=BASE | dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8, vocab_size=96,
        tie_word_embeddings=True, attention_bias=True, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, sliding_window=16,
        max_window_layers=1, use_sliding_window=True, dtype="float32", eos_token_id=94)),
}
