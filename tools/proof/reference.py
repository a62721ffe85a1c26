"""The float32 reference: a llama GGUF's weights, dequantised, in transformers."""
import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

# GGUF name -> transformers name, within a layer.
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}


def load(path, threads):
    """The model, ready to compute logits in float32."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    reader = gguf.GGUFReader(path)
    meta = {k: f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    config = LlamaConfig(
        vocab_size=meta["llama.vocab_size"], hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"], num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"], num_key_value_heads=meta["llama.attention.head_count_kv"],
        max_position_embeddings=meta["llama.context_length"], rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        tie_word_embeddings=True, rope_parameters={"rope_theta": meta["llama.rope.freq_base"], "rope_type": "default"})
    config._attn_implementation = "eager"
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        a = gguf.dequantize(np.asarray(t.data), t.tensor_type).reshape(shape).astype(np.float32)
        part = t.name.split(".")
        if part[0] == "blk":
            if part[2] in heads:    # GGUF stores rows for rotation of neighbours, transformers rotates halves
                a = a.reshape(heads[part[2]], -1, 2, shape[-1]).swapaxes(1, 2).reshape(shape)
            name = f"model.layers.{part[1]}.{NAMES[part[2]]}.weight"
        else:
            name = TOP[part[0]]
        state[name] = torch.from_numpy(np.ascontiguousarray(a))
    model = LlamaForCausalLM(config).eval()
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    return model


def logits(model, ids):
    """[len(ids), vocab] in one pass from an empty start."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(model, prompt, tokens):
    """(ids, the logits that chose each)."""
    out, rows, cache, given = [], [], None, prompt
    for _ in range(tokens):
        r = model(torch.tensor([given]), **({} if cache is None else {"cache": cache}), use_cache=True)
        rows.append(r.logits[0, -1].numpy().copy())
        out.append(int(rows[-1].argmax()))
        cache, given = r.cache, out[-1:]
    return out, rows
