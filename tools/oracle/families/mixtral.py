"""mixtral, what make_gqa.py leaves out: the sliding window of the first published config."""
from families.llama import convert, meta  # noqa: F401 (used by the maker)
from make_families import Fixture

ARCH = "llama"


def window(w, cfg):
    # The converter does not write it and llama.cpp does not read it for this arch; all layers have it.
    w.add_sliding_window(cfg["sliding_window"])


FIXTURES = {
    "mixtral-c": Fixture(seed=7, shards=2, index=False, meta=window, config=dict(
        architectures=["MixtralForCausalLM"], model_type="mixtral", attention_dropout=0.0, bos_token_id=1, hidden_act="silu",
        initializer_range=0.02, max_position_embeddings=512, rms_norm_eps=1e-5, use_cache=True, output_router_logits=False,
        router_aux_loss_coef=0.02, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        vocab_size=96, num_local_experts=4, num_experts_per_tok=3, sliding_window=16, tie_word_embeddings=True,
        rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, dtype="bfloat16", eos_token_id=94)),
}
