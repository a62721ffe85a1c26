"""deepseek_v32: deepseek_v3 with an indexer in every layer, whose rotation is half-split while the attention's is interleaved."""
import re

import numpy as np

import oracle
from families import _mla
from make_families import Fixture, gguf_name

ARCH = "deepseek32"
gguf_config = _mla.config
INDEXER = {"wq_b.weight": "attn_q_b.weight", "wk.weight": "attn_k.weight", "k_norm.weight": "k_norm.weight", "k_norm.bias": "k_norm.bias",
           "weights_proj.weight": "proj.weight"}
BASE = dict(
    architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", attention_bias=False, attention_dropout=0.0, bos_token_id=0,
    ep_size=1, hidden_act="silu", initializer_range=0.02, moe_layer_freq=1, n_shared_experts=1, norm_topk_prob=True,
    num_nextn_predict_layers=0, rms_norm_eps=1e-6, scoring_func="sigmoid", tie_word_embeddings=False, topk_method="noaux_tc",
    use_cache=True, torch_dtype="bfloat16",
)


def meta(w, cfg):
    _mla.meta(w, cfg)
    w.add_nextn_predict_layers(cfg["num_nextn_predict_layers"])
    w.add_indexer_head_count(cfg["index_n_heads"])
    w.add_indexer_key_length(cfg["index_head_dim"])
    w.add_indexer_top_k(cfg["index_topk"])


def convert(cfg, tensors):
    """The gguf package has no names for this arch yet; all but the indexer's are those of deepseek2."""
    stacks = {}
    for name, a in _mla.convert(cfg, tensors):
        m = re.match(r"model\.layers\.(\d+)\.self_attn\.indexer\.(.*)", name)
        e = re.match(r"(.*\.experts)\.\d+\.(.*)", name)
        if m:
            yield f"blk.{m[1]}.indexer.{INDEXER[m[2]]}", a
        elif e:  # in order of their numbers
            stacks.setdefault(f"{e[1]}.{e[2]}", []).append(a)
        else:
            yield gguf_name("deepseek2", cfg["num_hidden_layers"], name), a
    for name, parts in stacks.items():
        yield gguf_name("deepseek2", cfg["num_hidden_layers"], name), np.stack(parts)


def more(cfg, model, trace):
    return {}, {"indexer_topk": oracle.indexer_sets(trace)}


FIXTURES = {
    # indexer heads of 64 (llama.cpp rotates the indexer's cache and wants that), yarn
    "deepseek_v32-a": Fixture(seed=137, config=BASE | dict(
        hidden_size=24, intermediate_size=28, moe_intermediate_size=8, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=8, n_routed_experts=8,
        num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5, vocab_size=64, max_position_embeddings=2560, rope_theta=10000,
        rope_scaling=_mla.YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, index_topk=12, index_n_heads=16, index_head_dim=64, eos_token_id=62)),
    "deepseek_v32-b": Fixture(seed=164, config=BASE | dict(
        hidden_size=24, intermediate_size=28, moe_intermediate_size=10, num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=6,
        num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=1.5, vocab_size=64, max_position_embeddings=512,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, rope_theta=10000.0, index_topk=9, index_n_heads=16, index_head_dim=16,
        eos_token_id=[62, 63])),
}
