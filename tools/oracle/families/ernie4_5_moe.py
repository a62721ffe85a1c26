"""ernie4_5_moe: interleaved rotation, softmax router with a correction bias, weights divided by their sum."""
from make_families import Fixture

ARCH = "ernie4_5-moe"
TIED_DEFAULT = True
F32 = r"correction_bias$|mlp\.gate\.weight$"
BASE = dict(
    architectures=["Ernie4_5_MoeForCausalLM"], model_type="ernie4_5_moe", bos_token_id=1, hidden_act="silu", initializer_range=0.02,
    max_position_embeddings=512, moe_capacity=[64, 64, 64], moe_gate="topk", moe_use_aux_free=True, pad_token_id=0, rms_norm_eps=1e-5,
    use_bias=False, use_cache=True, num_nextn_predict_layers=0,
)


def meta(w, cfg):
    w.add_expert_count(cfg["moe_num_experts"])
    w.add_expert_used_count(cfg["moe_k"])
    w.add_interleave_moe_layer_step(cfg["moe_layer_interval"])
    w.add_leading_dense_block_count(cfg["moe_layer_start_index"])
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_expert_shared_count(cfg["moe_num_shared_experts"])
    if cfg["moe_num_shared_experts"]:
        # What the converter writes; true for the published model and, by choice of sizes, for ours.
        n = cfg["intermediate_size"] // cfg["num_key_value_heads"]
        assert n == cfg["moe_intermediate_size"] * cfg["moe_num_shared_experts"]
        w.add_expert_shared_feed_forward_length(n)


def choice(m, out):
    """See oracle.router_choice; gaps are differences of biased probabilities."""
    logits, weights, idx = out
    score = m.moe_statics(logits.softmax(-1))
    best, k = score.sort(-1, descending=True)[0], idx.shape[-1]
    order = score.gather(1, idx).argsort(-1, descending=True)
    return idx.gather(1, order).int(), weights.gather(1, order).float(), (best[:, k - 1] - best[:, k]).min().item()


FIXTURES = {
    "ernie4_5_moe-a": Fixture(seed=4, config=BASE | dict(
        hidden_size=32, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        moe_num_experts=8, moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=1,
        rope_theta=500000.0, rope_scaling=None, tie_word_embeddings=True, vocab_size=64, eos_token_id=62, torch_dtype="bfloat16")),
    # experts in layers 1 and 3 of 4 by interval 2, no shared expert, own head
    "ernie4_5_moe-b": Fixture(seed=17, config=BASE | dict(
        hidden_size=24, intermediate_size=20, moe_intermediate_size=8, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, moe_num_experts=6, moe_k=2, moe_num_shared_experts=0, moe_layer_start_index=0, moe_layer_end_index=-1,
        moe_layer_interval=2, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, tie_word_embeddings=False, vocab_size=64,
        eos_token_id=62, dtype="bfloat16")),
}
