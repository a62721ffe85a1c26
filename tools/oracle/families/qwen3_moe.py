"""qwen3_moe quantised as the compressed-tensors library publishes it: FP8 with one scale a row or a tensor, and experts in
MXFP4 (the plain ones: make_gqa.py)."""
from families import _fp8, _mxfp4
from make_families import Fixture

ARCH = "qwen3moe"
BASE = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", attention_bias=False, attention_dropout=0.0, bos_token_id=1,
    decoder_sparse_step=1, eos_token_id=62, head_dim=16, hidden_act="silu", hidden_size=48, initializer_range=0.02, intermediate_size=72,
    max_position_embeddings=512, max_window_layers=2, mlp_only_layers=[], moe_intermediate_size=24, norm_topk_prob=True,
    num_attention_heads=4, num_experts=6, num_experts_per_tok=2, num_hidden_layers=2, num_key_value_heads=2, output_router_logits=False,
    rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0, router_aux_loss_coef=0.001, sliding_window=None,
    tie_word_embeddings=False, torch_dtype="bfloat16", use_cache=True, use_sliding_window=False, vocab_size=64)
FIXTURES = {
    "qwen3_moe-fp8": Fixture(seed=5, gguf=False, rounded=_fp8.row_rounded, disk=_fp8.row_disk, config=BASE),
    "qwen3_moe-fp8t": Fixture(seed=21, gguf=False, rounded=_fp8.tensor_rounded, disk=_fp8.tensor_disk, config=BASE | dict(
        hidden_size=40, intermediate_size=56, moe_intermediate_size=32, mlp_only_layers=[1], norm_topk_prob=False,
        num_attention_heads=3, num_key_value_heads=1, num_experts=5, num_experts_per_tok=3, num_hidden_layers=3, tie_word_embeddings=True)),
    # Two blocks a row of gate and up, three a row of down; the dense layer stays bf16, as in Kimi K3.
    "qwen3_moe-mxfp4": Fixture(seed=5, gguf=False, rounded=_mxfp4.rounded, disk=_mxfp4.disk, config=BASE | dict(
        hidden_size=64, intermediate_size=32, moe_intermediate_size=96, mlp_only_layers=[0], num_attention_heads=2, num_key_value_heads=1,
        num_experts=5)),
}
