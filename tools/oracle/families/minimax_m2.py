"""minimax_m2: norms over the whole query and key rows, rotation of a part of each head, sigmoid router without shared expert."""
import gguf

from make_families import Fixture, rope_of

ARCH = "minimax-m2"
BASE = dict(
    architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", attention_dropout=0.0, bos_token_id=1, hidden_act="silu",
    initializer_range=0.02, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False, use_cache=True,
)


def meta(w, cfg):
    w.add_expert_feed_forward_length(cfg["intermediate_size"])
    w.add_rope_dimension_count(cfg.get("rotary_dim") or int(cfg["head_dim"] * rope_of(cfg)[0].get("partial_rotary_factor", 1.0)))


def choice(m, out):
    """See oracle.router_choice; the correction bias comes as the router's second argument."""
    logits, weights, idx = out
    score = logits.sigmoid() + m.seen_args[1]
    best, k = score.sort(-1, descending=True)[0], idx.shape[-1]
    order = score.gather(1, idx).argsort(-1, descending=True)
    return idx.gather(1, order).int(), weights.gather(1, order).float(), (best[:, k - 1] - best[:, k]).min().item()


FIXTURES = {
    # the keys of the published file, half of each head rotated by `rotary_dim`
    "minimax_m2-a": Fixture(seed=91, config=BASE | dict(
        hidden_size=32, intermediate_size=10, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rotary_dim=8,
        rope_theta=5000000, num_local_experts=6, num_experts_per_tok=3, scoring_func="sigmoid", use_qk_norm=True, qk_norm_type="per_layer",
        use_routing_bias=True, shared_intermediate_size=0, attn_type_list=[1, 1], num_mtp_modules=3, vocab_size=64,
        eos_token_id=62, torch_dtype="bfloat16")),
    # a quarter rotated, by rope_parameters; three shards
    "minimax_m2-b": Fixture(seed=83, shards=3, meta=lambda w, cfg: w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID), config=BASE | dict(
        hidden_size=24, intermediate_size=12, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25}, num_local_experts=4,
        num_experts_per_tok=2, vocab_size=64, eos_token_id=62, dtype="bfloat16")),
}
