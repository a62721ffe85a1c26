"""deepseek_v2: latent attention, softmax router, greedy or by groups (a group counts as much as its best expert)."""
import torch

from families import _mla
from make_families import Fixture

ARCH = "deepseek2"
gguf_config, meta, convert = _mla.config, _mla.meta, _mla.convert
BASE = dict(
    architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", attention_bias=False, attention_dropout=0.0, bos_token_id=0,
    ep_size=1, hidden_act="silu", initializer_range=0.02, moe_layer_freq=1, n_shared_experts=2, norm_topk_prob=False, rms_norm_eps=1e-6,
    scoring_func="softmax", seq_aux=True, tie_word_embeddings=False, use_cache=True, torch_dtype="bfloat16",
)


def choice(m, out):
    """See oracle.router_choice; gaps are measured on logits."""
    logits, weights, idx = out
    score, gap = logits, 9.0
    if m.topk_method == "group_limited_greedy":
        g = logits.view(len(logits), m.num_group, -1)
        best = g.max(-1).values
        s = best.sort(-1, descending=True)[0]
        gap = (s[:, m.topk_group - 1] - s[:, m.topk_group]).min().item()
        keep = torch.zeros_like(best).scatter_(1, best.topk(m.topk_group, -1)[1], 1).bool()
        score = g.masked_fill(~keep.unsqueeze(-1), -1e30).view_as(logits)
    best = score.sort(-1, descending=True)[0]
    k = idx.shape[-1]
    gap = min(gap, (best[:, k - 1] - best[:, k]).min().item())
    order = score.gather(1, idx).argsort(-1, descending=True)
    idx, weights = idx.gather(1, order), weights.gather(1, order)
    assert torch.equal(idx, score.topk(k, -1)[1])
    return idx.int(), weights.float(), gap


FIXTURES = {
    # V2-like: query latent, yarn with mscale 0.707, weights scaled
    "deepseek_v2-a": Fixture(seed=1, config=BASE | dict(
        hidden_size=32, intermediate_size=28, moe_intermediate_size=8, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=8, n_routed_experts=8,
        num_experts_per_tok=3, n_group=1, topk_group=1, topk_method="greedy", routed_scaling_factor=4.0, vocab_size=64,
        max_position_embeddings=2560, rope_theta=10000, rope_scaling=_mla.YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}, eos_token_id=62)),
    # no query latent (as V2-Lite), 4 groups of 2 experts of which 2 (as V2; 3 experts from 2 groups, or the groups would change nothing), f16
    "deepseek_v2-b": Fixture(seed=36, store="f16", config=BASE | dict(
        hidden_size=24, intermediate_size=28, moe_intermediate_size=8, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8,
        num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.0, vocab_size=64,
        max_position_embeddings=512, rope_theta=10000, rope_scaling=None, eos_token_id=62, torch_dtype="float16")),
}
