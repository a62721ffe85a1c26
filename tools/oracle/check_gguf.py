"""Second opinion on the fixtures, sharing no code with the library: reads model.gguf, computes the prompt
in numpy float64 from the formulas in README.md, and compares with expected.safetensors. It shows that the GGUF
files hold the same model as the safetensors (row order of q and k, split kv_b, stacked experts) and that the
written formulas are right. Also prints how far plausible mistakes move the logits, which tells what tolerance a
test may use.

    python check_gguf.py [fixture names]
"""
import json
import os
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

FIX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "fixtures")
MISTAKES = ("", "lora_norm_eps", "weights_with_bias", "no_bias", "no_renorm", "no_scale", "half_rope", "dense", "index_rope_last", "no_relu", "shared_own_row")


def read(path):
    r = gguf.GGUFReader(path)
    meta = {k: f.contents() for k, f in r.fields.items()}
    t = {}
    for x in r.tensors:
        t[x.name] = gguf.dequantize(np.asarray(x.data), x.tensor_type).astype(np.float64).reshape(tuple(int(n) for n in reversed(x.shape)))
    return meta, t


def rms(x, w, eps):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, pos, theta, pairs):
    """x [T, heads, dim]; pairs 'even' turns (2i, 2i+1), 'half' turns (i, i + dim/2)."""
    d = x.shape[-1]
    ang = (pos[:, None] * theta ** (-np.arange(0, d, 2) / d))[:, None]
    c, s, y = np.cos(ang), np.sin(ang), np.empty_like(x)
    a, b = (slice(0, None, 2), slice(1, None, 2)) if pairs == "even" else (slice(0, d // 2), slice(d // 2, None))
    y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., b] * c + x[..., a] * s
    return y


class Model:
    def __init__(self, path, wrong=""):
        self.m, self.t = read(path)
        self.arch, self.wrong = self.m["general.architecture"], wrong
        self.eps, self.theta = self.g("attention.layer_norm_rms_epsilon"), self.g("rope.freq_base")

    def g(self, key, default=None):
        return self.m.get(f"{self.arch}.{key}", default)

    def ffn(self, b, x, suffix=""):
        t = self.t
        return (silu(x @ t[b + f"ffn_gate{suffix}.weight"].T) * (x @ t[b + f"ffn_up{suffix}.weight"].T)) @ t[b + f"ffn_down{suffix}.weight"].T

    def moe(self, b, x):
        t, k = self.t, self.g("expert_used_count")
        logits = x @ t[b + "ffn_gate_inp.weight"].T
        bias = t.get(b + "exp_probs_b.bias")
        if bias is not None:
            s = 1 / (1 + np.exp(-logits))
            c = s if self.wrong == "no_bias" else s + bias
            n = self.g("expert_group_count", 1)
            if n > 1:
                gr = c.reshape(len(c), n, -1)
                gs = np.sort(gr, -1)[..., -2:].sum(-1)
                bad = gs < np.sort(gs, -1)[:, -self.g("expert_group_used_count")][:, None]
                c = np.where(np.repeat(bad, gr.shape[-1], 1), -np.inf, c)
            idx = np.argsort(-c, -1, kind="stable")[:, :k]
            w = np.take_along_axis(s + bias if self.wrong == "weights_with_bias" else s, idx, 1)
        else:
            p = softmax(logits)
            idx = np.argsort(-p, -1, kind="stable")[:, :k]
            w = np.take_along_axis(p, idx, 1)
        if self.g("expert_weights_norm", True) and self.wrong != "no_renorm":
            w = w / w.sum(-1, keepdims=True)
        if self.wrong != "no_scale":
            w = w * self.g("expert_weights_scale", 1.0)
        self.routed.append((idx, w))
        y = np.zeros_like(x)
        for r in range(len(x)):
            for e, we in zip(idx[r], w[r]):
                h = silu(t[b + "ffn_gate_exps.weight"][e] @ x[r]) * (t[b + "ffn_up_exps.weight"][e] @ x[r])
                y[r] += we * (t[b + "ffn_down_exps.weight"][e] @ h)
        return y + (self.ffn(b, x, "_shexp") if b + "ffn_gate_shexp.weight" in t else 0)

    def attn_gqa(self, b, x):
        t, T = self.t, len(x)
        H, K, d = self.g("attention.head_count"), self.g("attention.head_count_kv"), self.g("attention.key_length")
        q, k, v = ((x @ t[b + f"attn_{n}.weight"].T).reshape(T, -1, d) for n in "qkv")
        if b + "attn_q_norm.weight" in t:
            q, k = rms(q, t[b + "attn_q_norm.weight"], self.eps), rms(k, t[b + "attn_k_norm.weight"], self.eps)
        pairs = "even" if (self.arch == "llama") != (self.wrong == "half_rope") else "half"
        q, k = (rope(a, np.arange(T), self.theta, pairs) for a in (q, k))
        k, v = np.repeat(k, H // K, 1), np.repeat(v, H // K, 1)
        s = np.einsum("qhd,khd->hqk", q, k) * d**-0.5 + np.triu(np.full((T, T), -np.inf), 1)
        return np.einsum("hqk,khd->qhd", softmax(s), v).reshape(T, -1) @ t[b + "attn_output.weight"].T

    def attn_mla(self, b, x, dense=False):
        t, T, r = self.t, len(x), self.g("rope.dimension_count")
        H, kl = self.g("attention.head_count"), self.g("attention.kv_lora_rank")
        d, eps = self.g("attention.key_length_mla"), self.eps if self.wrong == "lora_norm_eps" else 1e-6
        pos, pairs = np.arange(T), "half" if self.wrong == "half_rope" else "even"
        a = rms(x @ t[b + "attn_q_a.weight"].T, t[b + "attn_q_a_norm.weight"], eps)
        q = (a @ t[b + "attn_q_b.weight"].T).reshape(T, H, d)
        ckv = x @ t[b + "attn_kv_a_mqa.weight"].T
        c = rms(ckv[:, :kl], t[b + "attn_kv_a_norm.weight"], eps)
        kr = rope(ckv[:, None, kl:], pos, self.theta, pairs)[:, 0]
        qr = rope(q[..., d - r:], pos, self.theta, pairs)
        ql = np.einsum("qhn,hln->qhl", q[..., : d - r], t[b + "attn_k_b.weight"])  # absorbed form: query in latent space
        s = (np.einsum("qhl,kl->hqk", ql, c) + np.einsum("qhr,kr->hqk", qr, kr)) * d**-0.5
        causal = np.triu(np.full((T, T), -np.inf), 1)
        if b + "indexer.proj.weight" in t:
            n, e = self.g("attention.indexer.head_count"), self.g("attention.indexer.key_length")
            qi = (a @ t[b + "indexer.attn_q_b.weight"].T).reshape(T, n, e)
            ki = x @ t[b + "indexer.attn_k.weight"].T
            ki = (ki - ki.mean(-1, keepdims=True)) / np.sqrt(ki.var(-1, keepdims=True) + 1e-6)
            ki = (ki * t[b + "indexer.k_norm.weight"] + t[b + "indexer.k_norm.bias"])[:, None]
            turn = slice(e - r, e) if self.wrong == "index_rope_last" else slice(0, r)
            qi[..., turn], ki[..., turn] = rope(qi[..., turn], pos, self.theta, pairs), rope(ki[..., turn], pos, self.theta, pairs)
            dots = np.einsum("qhd,kd->qhk", qi, ki[:, 0]) * e**-0.5
            w = x @ t[b + "indexer.proj.weight"].T * n**-0.5
            score = np.einsum("qh,qhk->qk", w, dots if self.wrong == "no_relu" else np.maximum(dots, 0)) + causal
            k = min(self.g("attention.indexer.top_k"), T)
            keep = np.argsort(-score, -1, kind="stable")[:, :k]
            self.mask = np.full((T, T), -np.inf)
            np.put_along_axis(self.mask, keep, 0, 1)
            self.sets.append(keep)
        elif self.wrong == "shared_own_row":
            self.mask = np.zeros((T, T))
        s = s + causal + (0 if dense or self.wrong == "dense" else self.mask)
        o = np.einsum("hqk,kl->qhl", softmax(s), c)
        return np.einsum("qhl,hvl->qhv", o, t[b + "attn_v_b.weight"]).reshape(T, -1) @ t[b + "attn_output.weight"].T

    def layer(self, i, x, dense=False):
        b, t = f"blk.{i}.", self.t
        h = rms(x, t[b + "attn_norm.weight"], self.eps)
        x = x + (self.attn_mla(b, h, dense) if self.arch == "glm-dsa" else self.attn_gqa(b, h))
        h = rms(x, t[b + "ffn_norm.weight"], self.eps)
        return x + (self.moe(b, h) if b + "ffn_gate_inp.weight" in t else self.ffn(b, h))

    def run(self, ids):
        t, self.routed, self.sets = self.t, [], []
        x = t["token_embd.weight"][ids]
        for i in range(self.g("block_count") - self.g("nextn_predict_layers", 0)):
            x = self.layer(i, x)
        self.hidden = rms(x, t["output_norm.weight"], self.eps)
        return self.hidden @ t.get("output.weight", t["token_embd.weight"]).T

    def draft(self, ids, dense):
        t, i = self.t, self.g("block_count") - 1
        b = f"blk.{i}.nextn."
        z = np.concatenate([rms(t["token_embd.weight"][ids[1:]], t[b + "enorm.weight"], self.eps), rms(self.hidden[:-1], t[b + "hnorm.weight"], self.eps)], -1)
        y = self.layer(i, z @ t[b + "eh_proj.weight"].T, dense)
        return rms(y, t[b + "shared_head_norm.weight"], self.eps) @ t["output.weight"].T


def check(name):
    path = os.path.join(FIX, name)
    want, info = load_file(os.path.join(path, "expected.safetensors")), json.load(open(os.path.join(path, "expected.json")))
    m = Model(os.path.join(path, "model.gguf"))
    diff = lambda a, b: float(np.abs(a - b).max())
    got = m.run(info["prompt_ids"])
    worst = {"prompt_logits": diff(got, want["prompt_logits"])}
    if "final_hidden" in want:
        worst["final_hidden"] = diff(m.hidden, want["final_hidden"])
    if m.routed:
        assert np.array_equal(np.stack([r[0] for r in m.routed]), want["router_experts"])
        worst["router_weights"] = diff(np.stack([r[1] for r in m.routed]), want["router_weights"])
    if "indexer_topk" in want:
        for s, w in zip(m.sets, want["indexer_topk"]):
            for p in range(len(s)):
                assert sorted(x for x in s[p] if x <= p) == [x for x in w[p] if x >= 0]
    if "mtp_logits" in want:
        worst["mtp_logits"] = diff(m.draft(info["prompt_ids"], False), want["mtp_logits"])
        worst["mtp_logits_dense"] = diff(m.draft(info["prompt_ids"], True), want["mtp_logits_dense"])
    assert got[-1].argmax() == info["greedy_ids"][0]
    print(name, "largest |logit| %.1f" % np.abs(got).max(), {k: f"{v:.1e}" for k, v in worst.items()}, flush=True)
    assert max(worst.values()) < 2e-3, worst
    for wrong in MISTAKES[1:]:
        d = diff(Model(os.path.join(path, "model.gguf"), wrong).run(info["prompt_ids"]), got)
        if d:
            print(f"    {wrong}: logits move by {d:.1e}")


if __name__ == "__main__":
    known = ("llama-a", "llama-b", "mixtral-a", "mixtral-b", "qwen3_moe-a", "qwen3_moe-b", "glm_moe_dsa-a", "glm_moe_dsa-b", "quant-mix")
    names = sys.argv[1:] or known  # make_families.py's go through check_llamacpp.py instead
    for n in names:
        check(n)
