"""gemma3_text: scaled embedding, norms by 1 + weight before and after each block, local and global layers."""
from make_families import Fixture, norm_flip, normal

ARCH = "gemma3"
TIED_DEFAULT = True
NORM_PLUS_ONE = True
BASE = dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", attention_dropout=0.0, attn_logit_softcapping=None, bos_token_id=2,
    hidden_activation="gelu_pytorch_tanh", initializer_range=0.02, max_position_embeddings=512, pad_token_id=0, rms_norm_eps=1e-6, use_cache=True,
)


def meta(w, cfg):
    w.add_sliding_window(cfg["sliding_window"])
    if cfg["final_logit_softcapping"]:
        w.add_final_logit_softcapping(cfg["final_logit_softcapping"])


def other_scale(w, cfg):
    # llama.cpp reads the pattern, but no converter writes it (then every sixth layer is global); it takes the scale
    # from head_dim (or, with 62 layers, hidden / heads) and has no key for another.
    w.add_sliding_window_pattern([x == "sliding_attention" for x in cfg["layer_types"]])
    w.add_attention_scale(cfg["query_pre_attn_scalar"] ** -0.5)


def convert(cfg, t):
    for n, a in t.items():
        yield n, a + 1 if n.endswith("norm.weight") else a


def loud(rng, shape, gain):
    """A larger final norm: wider margins."""
    return 2 * norm_flip(rng, shape, gain) - 1


FIXTURES = {
    # as the first published files spell it; layer 5 of 7 global (the default pattern), tied by default
    "gemma3_text-a": Fixture(seed=61, rules=((r"embed_tokens", normal, 0.6), (r"^model.norm.weight", loud, 0.3)), config=BASE | dict(
        attention_bias=False, hidden_size=32, intermediate_size=24, num_hidden_layers=7, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, query_pre_attn_scalar=8, vocab_size=96, sliding_window=16, final_logit_softcapping=None, rope_theta=1000000,
        rope_local_base_freq=10000, rope_scaling={"factor": 8.0, "rope_type": "linear"}, torch_dtype="bfloat16", eos_token_id=[94, 95])),
    # as transformers 5 writes it; own head, soft cap, another attention scale
    "gemma3_text-b": Fixture(seed=55, meta=other_scale, config=BASE | dict(
        attention_bias=True, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, query_pre_attn_scalar=40, vocab_size=96, sliding_window=12, final_logit_softcapping=7.5, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], use_bidirectional_attention=False,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 100000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}},
        dtype="bfloat16", eos_token_id=94)),
}
