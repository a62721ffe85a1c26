"""lfm2_moe: most layers mix by a short gated convolution, the others by attention; sigmoid router."""
import gguf

from make_families import Fixture, linear, norm_flip, spread

ARCH = "lfm2moe"
TIED_DEFAULT = True
F32 = r"expert_bias$"
RULES = (
    (r"expert_bias$", spread, 0.5),
    (r"^model\.embedding_norm\.weight$", norm_flip, 0.3),  # the final norm, before a tied head
    # Three projections of one input are multiplied with each other: smaller, or these layers drown the rest.
    (r"conv\.in_proj\.weight$", linear, 1.0),
    (r"conv\.(conv|out_proj)\.weight$", linear, 1.5),
)
BASE = dict(
    architectures=["Lfm2MoeForCausalLM"], model_type="lfm2_moe", bos_token_id=1, conv_L_cache=3, conv_bias=False, initializer_range=0.02,
    max_position_embeddings=512, norm_eps=1e-5, pad_token_id=0, use_cache=True,
)


def gguf_config(cfg):
    return cfg | {"num_key_value_heads": [cfg["num_key_value_heads"] * (t == "full_attention") for t in cfg["layer_types"]]}


def meta(w, cfg):
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_leading_dense_block_count(cfg["num_dense_layers"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_shortconv_l_cache(cfg["conv_L_cache"])


def more_keys(w, cfg):
    # Not written by the converter: llama.cpp always normalises here and never scales.
    w.add_expert_weights_norm(cfg["norm_topk_prob"])
    w.add_expert_weights_scale(cfg["routed_scaling_factor"])


def convert(cfg, tensors):
    for name, a in tensors.items():
        if name.endswith("conv.conv.weight"):
            a = a[:, 0]
        yield name.replace("expert_bias", "expert_bias.bias"), a


def put(g, name, a, fx):
    if not name.endswith("shortconv.conv.weight"):
        return False
    g.tensor(name, a)  # F32 whatever the file's type
    return True


def choice(m, out):
    """See oracle.router_choice; the correction bias, if any, comes as the router's second argument."""
    logits, weights, idx = out
    score = logits.sigmoid()
    if m.use_expert_bias:
        score = score + m.seen_args[1]
    best, k = score.sort(-1, descending=True)[0], idx.shape[-1]
    order = score.gather(1, idx).argsort(-1, descending=True)
    return idx.gather(1, order).int(), weights.gather(1, order).float(), (best[:, k - 1] - best[:, k]).min().item()


FIXTURES = {
    # as published: correction bias, weights normalised; 4 heads of 8 on 2, one dense layer of 3
    "lfm2_moe-a": Fixture(seed=165, config=BASE | dict(
        hidden_size=32, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=3, num_dense_layers=1, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        use_expert_bias=True, routed_scaling_factor=1.0, rope_theta=1000000.0, tie_embedding=True, vocab_size=64, eos_token_id=62,
        dtype="bfloat16")),
    # neither bias nor normalisation, weights scaled; 3 heads of 8 on 1, attention first, two dense layers of 4; a small
    # router, because sigmoids near 1 would tie without a bias
    "lfm2_moe-b": Fixture(seed=1739, store="f16", shards=2, meta=more_keys, rules=((r"feed_forward\.gate\.weight$", linear, 0.8),), config=BASE | dict(
        hidden_size=24, intermediate_size=20, moe_intermediate_size=10, num_hidden_layers=4, num_dense_layers=2, num_attention_heads=3,
        num_key_value_heads=1, layer_types=["full_attention", "conv", "full_attention", "conv"], num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=False, use_expert_bias=False, routed_scaling_factor=1.5, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=True, vocab_size=64, eos_token_id=[62, 63], dtype="float16")),
}
