"""granitemoe: four multipliers; router softmax over the chosen logits only; experts fused and stacked on disk."""
from make_families import Fixture, interleave, linear, normal

ARCH = "granitemoe"
BASE = dict(
    architectures=["GraniteMoeForCausalLM"], model_type="granitemoe", attention_dropout=0.0, bos_token_id=0, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, output_router_logits=False, pad_token_id=0, rms_norm_eps=1e-6, router_aux_loss_coef=0.0, use_cache=True,
)


def meta(w, cfg):
    w.add_rope_dimension_count(cfg["hidden_size"] // cfg["num_attention_heads"])
    w.add_attention_scale(cfg["attention_multiplier"])
    w.add_embedding_scale(cfg["embedding_multiplier"])
    w.add_residual_scale(cfg["residual_multiplier"])
    w.add_logit_scale(cfg["logits_scaling"])


def convert(cfg, t):
    for n, a in t.items():
        if ".q_proj." in n:
            a = interleave(a, cfg["num_attention_heads"])
        elif ".k_proj." in n:
            a = interleave(a, cfg["num_key_value_heads"])
        elif n.endswith("block_sparse_moe.input_linear.weight"):
            b, f = f"blk.{n.split('.')[2]}.", cfg["intermediate_size"]
            yield b + "ffn_gate_exps.weight", a[:, :f]
            yield b + "ffn_up_exps.weight", a[:, f:]
            continue
        yield n, a


FIXTURES = {
    "granitemoe-a": Fixture(seed=4, rules=((r"embed_tokens", normal, 0.6),), config=BASE | dict(
        hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
        num_local_experts=5, num_experts_per_tok=2, attention_bias=False, tie_word_embeddings=True, embedding_multiplier=1.75,
        logits_scaling=2.0, residual_multiplier=0.625, attention_multiplier=0.25, rope_theta=10000.0, rope_scaling=None,
        torch_dtype="bfloat16", eos_token_id=94)),
    "granitemoe-b": Fixture(seed=1, shards=2, index=False, rules=((r"embed_tokens", normal, 0.33), (r"lm_head", linear, 9.0)), config=BASE | dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=96,
        num_local_experts=4, num_experts_per_tok=3, attention_bias=True, tie_word_embeddings=False, embedding_multiplier=3.0,
        logits_scaling=3.5, residual_multiplier=0.8, attention_multiplier=0.375, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
        dtype="bfloat16", eos_token_id=94)),
}
