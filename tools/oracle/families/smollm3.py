"""smollm3: llama with layers that do not rotate (every fourth one unless `no_rope_layers` says otherwise)."""
from make_families import Fixture, interleave

ARCH = "smollm3"
TIED_DEFAULT = True
BASE = dict(
    architectures=["SmolLM3ForCausalLM"], model_type="smollm3", attention_dropout=0.0, bos_token_id=None, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, pad_token_id=0, pretraining_tp=2, rms_norm_eps=1e-6, use_cache=False,
)


def meta(w, cfg):
    w.add_rope_dimension_count(cfg["hidden_size"] // cfg["num_attention_heads"])


def patterns(w, cfg):
    # Not written by the converter: llama.cpp leaves out every fourth layer's rotation, whatever the config says.
    rope = [(i + 1) % cfg["no_rope_layer_interval"] != 0 for i in range(cfg["num_hidden_layers"])]
    w.add_array("smollm3.attention.rope_pattern", rope)
    w.add_sliding_window(cfg["sliding_window"])
    w.add_sliding_window_pattern([not r for r in rope])


def convert(cfg, t):
    for n, a in t.items():
        if ".q_proj." in n:
            a = interleave(a, cfg["num_attention_heads"])
        elif ".k_proj." in n:
            a = interleave(a, cfg["num_key_value_heads"])
        yield n, a


FIXTURES = {
    # as published: explicit list, tied by the class's default
    "smollm3-a": Fixture(seed=5, config=BASE | dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
        attention_bias=False, mlp_bias=False, layer_types=["full_attention"] * 4, max_window_layers=28, no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0], rope_scaling=None, rope_theta=5000000.0, sliding_window=None, use_sliding_window=False,
        torch_dtype="bfloat16", eos_token_id=94)),
    # no list: every second layer does not rotate and has the window of 16; biases everywhere
    "smollm3-b": Fixture(seed=6, meta=patterns, config=BASE | dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, vocab_size=96,
        attention_bias=True, mlp_bias=True, no_rope_layer_interval=2, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        sliding_window=16, use_sliding_window=True, tie_word_embeddings=False, dtype="bfloat16", eos_token_id=94)),
}
