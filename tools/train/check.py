#!/usr/bin/env python3
"""Everything the model card states, measured; each part can be run alone.

  arch     a randomised model through transformers' GlmMoeDsaForCausalLM and through model.py: the logits must agree
  hf       the exported directory loaded by transformers, against the checkpoint, on held-out text
  gguf     every tensor of the GGUF dequantised against the checkpoint, within Q8_0's error
  loss     held-out nats per token and per byte: dense and sparse attention, f32 and Q8_0 weights; MTP agreement; indexer recall
  sample   unedited continuations

usage: check.py PART.. [--ckpt C] [--gguf G] [--hf DIR] [--data TOK] [--json OUT]
"""
import argparse, json, os
import numpy as np
import torch
import torch.nn.functional as F
import export
from model import Anna, Config

PROMPTS = ["It is a truth universally acknowledged, that a",
           "And it came to pass in those days, that",
           "Emma was very much surprised to see Mr. Knightley"]


def arch(a):
    from transformers import GlmMoeDsaForCausalLM
    torch.manual_seed(3)
    m = Anna(Config()).eval()
    with torch.no_grad():                     # all-ones norms and zero biases would hide mistakes
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.1) if p.dim() == 1 else p.mul_(1.5)
        for x in m.moes():
            x.gate.e_score_correction_bias.normal_(0, 0.1)
            x.gate.weight.mul_(4)
        where = a.hf + ".random"
        export.write_hf(m, None, where)
        h = GlmMoeDsaForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(0, m.c.vocab, (2, 200))
        want, sparse, dense = h(ids).logits, m(ids, sparse=True)[0], m(ids)[0]
    d = (want - sparse).abs().max().item()
    print(f"arch: max |logit difference| {d:.2e} (logits' std {want.std():.2f}; dense attention would differ by "
          f"{(want - dense).abs().max():.2f})")
    assert d < 1e-4
    return {"max_logit_difference": d}


def hf(a):
    from transformers import AutoTokenizer, GlmMoeDsaForCausalLM
    m, _ = export.load(a.ckpt)
    h = GlmMoeDsaForCausalLM.from_pretrained(a.hf, dtype=torch.float32, attn_implementation="eager").eval()
    ids = rows(a, "held_austen", 256)[:4]
    with torch.no_grad():
        d = (h(ids).logits - m(ids, sparse=True)[0]).abs().max().item()
    t = AutoTokenizer.from_pretrained(a.hf)
    text = "\"Anne\" -- it is 1817, and naïve;\n\n so be it."
    assert t.decode(t(text)["input_ids"]) == text
    print(f"hf: max |logit difference| {d:.2e} on 4 x 256 held-out tokens; its tokenizer round-trips")
    assert d < 1e-3
    return {"max_logit_difference": d}


def from_gguf(path, c):
    """The GGUF's weights, dequantised, in a model of ours: what an engine with exact arithmetic would run."""
    import gguf
    t = {x.name: torch.from_numpy(gguf.quants.dequantize(x.data, x.tensor_type).copy()) for x in gguf.GGUFReader(path).tensors}
    m = Anna(c).eval()
    ours = {n: a for n, a, _ in export.gguf_tensors(m)}
    assert ours.keys() == t.keys(), ours.keys() ^ t.keys()
    sd, L = {}, c.n_layers
    names = {"attn_norm": "input_layernorm", "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
             "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_output": "self_attn.o_proj",
             "attn_kv_a_norm": "self_attn.kv_a_layernorm", "indexer.k_norm": "self_attn.indexer.k_norm",
             "indexer.proj": "self_attn.indexer.weights_proj", "indexer.attn_k": "self_attn.indexer.wk",
             "indexer.attn_q_b": "self_attn.indexer.wq_b", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
             "nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.shared_head_norm": "shared_head.norm"}
    for n in ("gate", "up", "down"):
        names[f"ffn_{n}"] = f"mlp.{n}_proj"
        names[f"ffn_{n}_shexp"] = f"mlp.shared_experts.{n}_proj"
    for k, v in t.items():
        if not k.startswith("blk."):
            sd[{"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}[k[:-7]] + ".weight"] = v
            continue
        _, i, rest = k.split(".", 2)
        p, (stem, kind) = f"layers.{i}.", rest.rsplit(".", 1)
        if stem in names:
            sd[f"{p}{names[stem]}.{kind}"] = v
    for i in range(L + 1):
        b, p = f"blk.{i}.", f"layers.{i}."
        kb, vb = t[b + "attn_k_b.weight"].view(c.heads, c.kv_lora, c.nope), t[b + "attn_v_b.weight"].view(c.heads, c.v, c.kv_lora)
        sd[p + "self_attn.kv_b_proj.weight"] = torch.cat((kb.transpose(1, 2), vb), 1).reshape(-1, c.kv_lora)
        if i >= c.n_dense:
            sd[p + "mlp.gate.e_score_correction_bias"] = t[b + "exp_probs_b.bias"]
            sd[p + "mlp.experts.gate_up_proj"] = torch.cat((t[b + "ffn_gate_exps.weight"], t[b + "ffn_up_exps.weight"]), 1)
            sd[p + "mlp.experts.down_proj"] = t[b + "ffn_down_exps.weight"]
    m.load_state_dict(sd)
    return m


def gguf_(a):
    m, _ = export.load(a.ckpt)
    q = from_gguf(a.gguf, m.c)
    worst = 0.0
    for (n, x, plain), (_, y, _) in zip(export.gguf_tensors(m), export.gguf_tensors(q)):
        if plain:
            assert np.array_equal(x, y), n
        else:                                  # half a step of the block's scale, plus the scale's own f16 rounding
            bx, by = x.reshape(-1, 32), y.reshape(-1, 32)
            step = np.abs(bx).max(1, keepdims=True) / 127
            err = float((np.abs(bx - by) / np.maximum(step, 1e-12)).max())
            worst = max(worst, err)
            assert err < 0.57, (n, err)
    size = os.path.getsize(a.gguf)
    print(f"gguf: {size} bytes = {size / 2 ** 20:.3f} MiB; F32 tensors equal, Q8_0 within {worst:.3f} of a quantisation step")
    return {"bytes": size, "worst_step": worst}


def rows(a, name, T):
    x = np.fromfile(os.path.join(a.data, name + ".bin"), np.uint16)
    n = len(x) // T
    return torch.from_numpy(x[:n * T].reshape(n, T).astype(np.int64))


@torch.no_grad()
def evaluate(m, a, name, sparse, T=256, stats=False):
    x, tot, n, agree, right, na, rec = rows(a, name, T), 0.0, 0, 0, 0, 0, []
    x = x[:8] if T > 256 else x                # the long rows are a look beyond the training length, not the main figure
    for i in range(0, len(x), 8):
        ids = x[i:i + 8]
        lg, ml, _, st = m(ids, sparse=sparse, kl_rows=len(ids) if stats else 0, stats=stats)
        tot += F.cross_entropy(lg[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        n += ids[:, 1:].numel()
        draft, own = ml.argmax(-1), lg[:, 1:].argmax(-1)
        agree += (draft == own).sum().item()
        right += (draft[:, :-1] == ids[:, 2:]).sum().item()
        na += draft.numel()
        rec += [st.recalls] if stats else []
    return {"nats": tot / n, "mtp_agreement": agree / na, "mtp_top1": right / na, "recall": np.mean(rec, 0).tolist() if stats else None}


def loss(a):
    m, ck = export.load(a.ckpt)
    models = {"f32": m}
    if a.gguf and os.path.exists(a.gguf):
        models["q8_0"] = from_gguf(a.gguf, m.c)
    other = Anna(Config(**{**ck["config"], "eps_latent": m.c.eps})).eval()
    other.load_state_dict(ck["model"])
    models["f32, latent eps 1e-5"] = other      # what an engine with GGUF's single epsilon computes
    out = {"step": ck["step"], "tokens": ck["tokens"]}
    for name in a.held or ("held_austen", "held_kjv"):
        per = json.load(open(os.path.join(a.data, "stats.json")))[name]["bytes_per_token"]
        for wn, w in models.items():
            for sparse in (True,) if "eps" in wn else (False, True):
                for T in ((256, 1024) if wn == "f32" else (256,)):
                    r = evaluate(w, a, name, sparse, T, stats=(wn == "f32" and not sparse))     # under a mask the mass inside it is 1
                    key = f"{name} {wn} {'sparse' if sparse else 'dense'} T={T}"
                    out[key] = r
                    print(f"{key}: {r['nats']:.4f} nats/token, {r['nats'] / per:.4f} nats/byte, MTP agrees {r['mtp_agreement']:.4f}, "
                          f"MTP right {r['mtp_top1']:.4f}", flush=True)
                    if r["recall"]:
                        for i, (got, best, overlap) in enumerate(r["recall"]):
                            print(f"    indexer {i}: attention mass of its choice {got:.3f}, of the best choice {best:.3f}, "
                                  f"share of the true top-{m.c.idx_topk} chosen {overlap:.3f}")
    return out


@torch.no_grad()
def sample(a, n=160, temperature=0.7):
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(os.path.join(a.data, "tokenizer.json"))
    m, out = export.load(a.ckpt)[0], []
    for k, prompt in enumerate(a.prompt or PROMPTS):
        torch.manual_seed(a.seed + k)
        ids = t.encode(prompt).ids
        for _ in range(n):
            p = (m(torch.tensor([ids]), sparse=True, mtp=0)[0][0, -1] / temperature).softmax(-1)
            ids.append(int(torch.multinomial(p, 1)))
            if ids[-1] == 0:
                break
        out.append(t.decode(ids))
        print(f"--- {prompt!r}\n{out[-1]}\n", flush=True)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("part", nargs="+", choices=["arch", "hf", "gguf", "loss", "sample"])
    for k in ("ckpt", "gguf", "hf", "data", "json"):
        ap.add_argument("--" + k)
    ap.add_argument("--held", action="append", help="one held-out file, repeatable (default: both)")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--prompt", action="append")
    a = ap.parse_args()
    torch.set_num_threads(1)
    res = {p: {"arch": arch, "hf": hf, "gguf": gguf_, "loss": loss, "sample": sample}[p](a) for p in a.part}
    if a.json:
        json.dump(res, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
