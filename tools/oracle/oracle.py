"""Shared parts of the fixture makers.

A fixture directory holds a tiny random checkpoint twice (safetensors under the names the published
models use, and GGUF) and what the transformers library computes from it in float32. The engine's
tests compare against these files, so nothing here may depend on the engine.

Why random weights are shaped the way they are: all-ones norms, zero biases and near-equal router
scores hide mistakes, so every norm weight and bias is random, and the seeds were searched so that no
greedy choice, router choice or indexer choice is a near-tie that float rounding could flip.
"""
import json
import os
import re
import shutil
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file

torch.set_num_threads(1)
torch.set_grad_enabled(False)

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "fixtures")
PROMPT, STEPS = 48, 32
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class Weights:
    """Named random tensors, already rounded to the storage type, as float32 arrays."""

    def __init__(self, seed, store):
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.store, self.t, self.f32_names = store, {}, set()

    def put(self, name, a, keep_f32=False):
        x = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32))
        if keep_f32:
            self.f32_names.add(name)
        else:
            x = x.to(TORCH[self.store]).float()
        self.t[name] = x.numpy()

    def lin(self, name, out_dim, in_dim, gain=1.0):
        self.put(name, self.rng.standard_normal((out_dim, in_dim)) * gain / in_dim**0.5)

    def norm(self, name, n, flip=False):
        w = 1 + 0.3 * self.rng.standard_normal(n)
        if flip:  # random signs: keeps a tied head from repeating the last token for ever
            w *= self.rng.choice([-1.0, 1.0], n)
        self.put(name, w)


def prompt_ids(seed, vocab):
    rng = np.random.Generator(np.random.PCG64(seed + 7919))
    return rng.integers(0, vocab - 4, PROMPT).tolist()


def save(tensors, path, name):
    name = os.path.join(path, name)
    save_file(tensors, name, metadata={"format": "pt"})
    os.chmod(name, 0o644)  # the library creates private files


def write_checkpoint(path, cfg, w, shards=1):
    """config.json plus model.safetensors, or `shards` files and their index."""
    os.makedirs(path, exist_ok=True)
    for f in os.listdir(path):
        if f.endswith(".safetensors") or f.endswith(".index.json"):
            os.remove(os.path.join(path, f))
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(cfg, f, indent=1)
        f.write("\n")
    names = list(w.t)
    tensors = {n: torch.from_numpy(w.t[n]).to(torch.float32 if n in w.f32_names else TORCH[w.store]) for n in names}
    if shards == 1:
        save(tensors, path, "model.safetensors")
        return
    # Whole tensors in name order, cut by bytes: experts of one layer may fall into two files.
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    where, used, parts = {}, 0, [{} for _ in range(shards)]
    for n in names:
        i = min(used * shards // total, shards - 1)
        parts[i][n] = tensors[n]
        where[n] = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        used += tensors[n].numel() * tensors[n].element_size()
    for i, p in enumerate(parts):
        save(p, path, f"model-{i + 1:05}-of-{shards:05}.safetensors")
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, f, indent=1)
        f.write("\n")


class Gguf:
    """GGUF writer that takes float32 arrays and a target type per tensor."""

    def __init__(self, path, arch, name):
        self.w = gguf.GGUFWriter(path, arch)
        self.arch = arch
        self.w.add_name(name)

    def u32(self, key, v):
        self.w.add_uint32(f"{self.arch}.{key}", v)

    def tensor(self, name, a, kind="f32"):
        a = np.ascontiguousarray(a, dtype=np.float32)
        if kind == "f32":
            self.w.add_tensor(name, a)
        elif kind == "f16":
            self.w.add_tensor(name, a.astype(np.float16))
        else:
            self.w.add_tensor(name, gguf.quantize(a, Q.BF16), raw_dtype=Q.BF16)

    def raw(self, name, data, qtype):
        """Ready-made blocks: uint8 array whose last axis is bytes per row."""
        self.w.add_tensor(name, np.ascontiguousarray(data), raw_dtype=qtype)

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def load(path):
    """The checkpoint as transformers sees it, float32, plain attention and plain expert loop. Every tensor the
    library wants must be there."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    # A draft layer is a block after the last one; the library does not read it.
    draft = f"model.layers.{model.config.num_hidden_layers}."
    left = [n for n in info["unexpected_keys"] if not n.startswith(draft)]
    assert not (left or info["missing_keys"] or info["mismatched_keys"]), info
    return model.eval()


class Trace:
    """Runs a whole sequence without a cache and keeps what routers and indexers saw and chose."""

    def __init__(self, model, ids):
        self.routers, self.indexers, self.layers, hooks = [], [], [], []
        for name, m in model.named_modules():
            if type(m).__name__.endswith(("TopKRouter", "TopkRouter")):
                hooks.append(m.register_forward_hook(self.saw_router))
            elif type(m).__name__.endswith("Indexer"):
                hooks.append(m.register_forward_hook(lambda m, a, k, o: self.indexers.append((m, a, k, o)), with_kwargs=True))
            elif type(m).__name__.endswith("DecoderLayer"):
                hooks.append(m.register_forward_hook(lambda m, a, o: self.layers.append(o[0] if isinstance(o, tuple) else o)))
        base = model.model
        # What the first layer sees (scaled where a family scales its embedding) and what the final norm gives.
        hooks.append(base.layers[0].register_forward_pre_hook(
            lambda m, a, k: setattr(self, "embed", (a[0] if a else k["hidden_states"])[0]), with_kwargs=True))
        final = base.norm if hasattr(base, "norm") else base.embedding_norm  # lfm2's name for it
        hooks.append(final.register_forward_hook(lambda m, a, o: setattr(self, "hidden", o)))
        self.logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        for h in hooks:
            h.remove()

    def saw_router(self, m, args, out):
        object.__setattr__(m, "seen_args", args)  # some families hand their correction bias to the router
        self.routers.append((m, out))


def router_choice(module, out):
    """(experts, weights, smallest gap between the last chosen and the first rejected, per row), best first."""
    logits, weights, idx = out
    if hasattr(module, "e_score_correction_bias"):
        choice = logits.sigmoid() + module.e_score_correction_bias
        if module.num_group > 1:
            g = choice.view(len(choice), module.num_group, -1)
            gs = g.topk(2, -1)[0].sum(-1)
            s = gs.sort(-1, descending=True)[0]
            group_gap = (s[:, module.topk_group - 1] - s[:, module.topk_group]).min().item()
            keep = torch.zeros_like(gs).scatter_(1, gs.topk(module.topk_group, -1)[1], 1).bool()
            choice = g.masked_fill(~keep.unsqueeze(-1), -1e30).view_as(choice)
        else:
            group_gap = 9.0
    else:
        choice, group_gap = logits, 9.0  # softmax is monotonic, so ties are measured on the logits
    best = choice.sort(-1, descending=True)[0]
    k = idx.shape[-1]
    gap = min((best[:, k - 1] - best[:, k]).min().item(), group_gap)
    order = choice.gather(1, idx).argsort(-1, descending=True)
    idx, weights = idx.gather(1, order), weights.gather(1, order)
    assert torch.equal(idx, choice.topk(k, -1)[1])
    return idx.int(), weights.float(), gap


def greedy(model, ids, steps=STEPS, margin=0.0):
    """Greedy ids with a cache and without; they must agree. Margins come from the cacheless run; one below `margin` rejects."""
    seq, margins = list(ids), []
    for _ in range(steps):
        logits = model(torch.tensor([seq]), use_cache=False, logits_to_keep=1).logits[0, -1]
        top = logits.topk(2)
        margins.append((top.values[0] - top.values[1]).item())
        if margins[-1] < margin:
            raise Reject(f"greedy margin {margins[-1]:.3f}")
        seq.append(top.indices[0].item())
    model.generation_config.eos_token_id = None
    x = torch.tensor([ids])
    cached = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=steps, do_sample=False, pad_token_id=0)
    return seq[len(ids):], margins, cached[0, len(ids):].tolist()


def named_min(values, what):
    i = int(np.argmin(values))
    return {"value": round(float(values[i]), 6), what: i}


class Reject(Exception):
    pass


def put_expected(path, info, tensors):
    with open(os.path.join(path, "expected.json"), "w") as f:
        text = json.dumps(info, indent=1)
        # one line per list of numbers
        text = re.sub(r"\[\s+([-\d.,e\s]+?)\s+\]", lambda m: "[" + " ".join(m.group(1).split()) + "]", text)
        f.write(text + "\n")
    out = {}
    for k, v in tensors.items():
        v = v if isinstance(v, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(v))
        out[k] = v.to(torch.int32 if not v.is_floating_point() else torch.float32).contiguous().clone()
    save(out, path, "expected.safetensors")


def record(path, cfg, ids, limits, model=None, more=None, hidden=True, choice=router_choice):
    """Runs the oracle on `path`. `limits`: margin, router, indexer, distinct (smallest allowed values).
    Cheap checks come first so that a seed search rejects early. `more(model, trace)` may add (info, tensors).
    `choice` replaces `router_choice` for families whose router modules report in another shape."""
    model = model or load(path)

    def gaps(tr, part):
        r = [choice(m, o) for m, o in tr.routers]
        rg = [x[2] for x in r]
        ig = [indexer_gap(*x) for x in tr.indexers]
        if rg and min(rg) < limits["router"]:
            raise Reject(f"{part}: router gap {min(rg):.2e}")
        if ig and min(ig) < limits["indexer"]:
            raise Reject(f"{part}: indexer gap {min(ig):.2e}")
        return r, rg, ig

    tr = Trace(model, ids)
    routed, rg, ig = gaps(tr, "prompt")
    add_info, add_tensors = more(model, tr) if more else ({}, {})
    g, margins, cached = greedy(model, ids, margin=limits["margin"])
    if g != cached:
        raise Reject("cached and cacheless ids differ")
    if len(set(g)) < limits["distinct"]:
        raise Reject(f"only {len(set(g))} distinct ids")
    eos = cfg.get("eos_token_id")
    if set(eos if isinstance(eos, list) else [eos]) & set(g):
        raise Reject("the end token was chosen")
    whole = Trace(model, ids + g)
    routed_all, rg2, ig2 = gaps(whole, "text")
    for (e, _, _), (m, _) in zip(routed_all, whole.routers):
        n = len(set(e.flatten().tolist()))
        if n < limits.get("experts_used", 0.6) * m.weight.shape[0]:
            raise Reject(f"only {n} experts used in a layer")
    info = {
        "prompt_ids": ids,
        "greedy_ids": g,
        "cached_equals_cacheless": True,
        "margins": [round(x, 5) for x in margins],
        "smallest_margin": named_min(margins, "step"),
        "eos_token_id": eos,
        "distinct_greedy_ids": len(set(g)),
    }
    if rg:
        info["smallest_router_gap"] = named_min(rg2, "moe_layer")
    if ig:
        info["smallest_indexer_gap"] = named_min(ig2, "full_layer")
    info |= add_info
    t = {"prompt_logits": tr.logits}
    if hidden:
        t["final_hidden"] = tr.hidden[0]
    # embedding, then every layer's output, at the last prompt position: where an engine first goes wrong
    t["layer_last"] = torch.stack([tr.embed[-1]] + [x[0, -1] for x in tr.layers])
    if rg:
        t["router_experts"] = torch.stack([x[0] for x in routed])
        t["router_weights"] = torch.stack([x[1] for x in routed])
    return info, t | add_tensors, tr


def indexer_scores(m, args, kwargs):
    """The indexer's formula written out a second time; checks FORMULAS against the library's own choice."""
    b = dict(zip(["hidden_states", "q_resid", "position_embeddings", "attention_mask"], args)) | kwargs
    x, a, (cos, sin) = b["hidden_states"][0], b["q_resid"][0], b["position_embeddings"]
    n, d, r = m.n_heads, m.head_dim, m.qk_rope_head_dim
    c, s = cos[0, :, : r // 2], sin[0, :, : r // 2]
    q = m.wq_b(a).view(len(x), n, d)
    k = m.wk(x)
    k = (k - k.mean(-1, keepdim=True)) / (k.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt() * m.k_norm.weight + m.k_norm.bias

    def rope(v, c, s):
        if type(m).__name__.startswith("DeepseekV32"):  # half-split pairs, unlike GLM
            e, o = v[..., : r // 2], v[..., r // 2 : r]
            return torch.cat([e * c - o * s, o * c + e * s, v[..., r:]], -1)
        e, o = v[..., 0:r:2], v[..., 1:r:2]
        return torch.cat([torch.stack([e * c - o * s, o * c + e * s], -1).flatten(-2), v[..., r:]], -1)

    q, k = rope(q, c[:, None], s[:, None]), rope(k, c, s)
    w = m.weights_proj(x) * n**-0.5
    score = torch.einsum("qh,qhk->qk", w, torch.relu(torch.einsum("qhd,kd->qhk", q, k) * d**-0.5))
    return score.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))


def indexer_gap(m, args, kwargs, out):
    score = indexer_scores(m, args, kwargs)
    top, t = m.index_topk, len(score)
    if t <= top:
        return 9.0
    mine = score.topk(top, -1)
    for p in range(top, t):
        assert set(mine.indices[p].tolist()) == set(out[0, p].tolist())
    best = score.sort(-1, descending=True)[0]
    return (best[top:, top - 1] - best[top:, top]).min().item()


def indexer_sets(tr):
    """[full layers, T, index_topk], ascending, -1 where fewer keys are visible."""
    rows = []
    for m, a, k, out in tr.indexers:
        o = out[0].long()
        t = len(o)
        full = torch.full((t, m.index_topk), -1, dtype=torch.int32)
        for p in range(t):
            v = sorted(i for i in o[p].tolist() if i <= p)
            full[p, : len(v)] = torch.tensor(v, dtype=torch.int32)
        rows.append(full)
    return torch.stack(rows)


def search(name, build, limits, more=None, start=1, stop=4000, want=1, verbose=True):
    """Tries seeds in a scratch directory and prints those that pass."""
    found, why = [], {}
    tmp = tempfile.mkdtemp()
    for seed in range(start, stop):
        cfg, w, ids = build(seed)
        write_checkpoint(tmp, cfg, w)
        try:
            info, _, _ = record(tmp, cfg, ids, limits, more=more)
        except Reject as e:
            key = str(e).rsplit(" ", 1)[0] if "gap" in str(e) or "margin" in str(e) else str(e)
            why[key] = why.get(key, 0) + 1
            continue
        print(name, "seed", seed, info["smallest_margin"], info.get("smallest_router_gap"), info.get("smallest_indexer_gap"), "distinct", info["distinct_greedy_ids"], flush=True)
        found.append(seed)
        if len(found) >= want:
            break
    if verbose:
        print(name, "rejected:", why, flush=True)
    shutil.rmtree(tmp)
    return found
