"""One maker for all families that need no code of their own: a family is a file in `families/`.

    python make_families.py                       # writes every fixture of every family (fixed seeds)
    python make_families.py qwen2 olmoe-b         # families or single fixtures
    python make_families.py --search olmoe-b 3    # finds the next seeds that pass (a third number: where to start)
    python make_families.py --list

Tensor names and shapes come from the library itself: the model class is built from the config and saved, and
the library writes the names that published checkpoints use. Every tensor is then drawn by its kind (`RULES`),
rounded to the storage type, written, and read back by the library, which must find every name it wants and no
other. The GGUF file holds the same values under the names that llama.cpp's converter gives them
(`check_converter.py` compares with that converter).
"""
import dataclasses
import functools
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from typing import Any, Callable

import gguf
import numpy as np
import torch
from safetensors import safe_open

import oracle as o

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = {"margin": 0.04, "router": 2e-3, "indexer": 1e-3, "distinct": 20}


@dataclasses.dataclass
class Fixture:
    """One directory under fixtures/. Only `config` and `seed` are always needed."""

    config: dict  # config.json as it is written
    seed: int = 1
    store: str = "bf16"  # bf16, f16 or f32: the type of everything but `f32` tensors
    shards: int = 1
    index: bool = True  # False: shards without model.safetensors.index.json
    rules: tuple = ()  # drawing rules before the family's own
    limits: dict = dataclasses.field(default_factory=dict)  # overrides LIMITS
    gguf: bool = True  # False: no GGUF file
    meta: Callable | None = None  # meta(writer, config): GGUF keys of this fixture only
    # disk(config, tensors) -> (config, {name: torch tensor}): what is written to disk instead of the plain
    # tensors (quantised checkpoints). The library computes from the plain ones, so `rounded` must make them exact.
    disk: Callable | None = None
    rounded: Callable | None = None  # rounded(name, array) -> array: replaces rounding to `store` (None: default)
    extra: Any = None


# ---------------------------------------------------------------------------------------------- drawing

def normal(rng, shape, gain):
    return gain * rng.standard_normal(shape)


def norm(rng, shape, gain):
    """Around 1: for norms that multiply by the weight."""
    return 1 + gain * rng.standard_normal(shape)


def norm_flip(rng, shape, gain):
    """Random signs: keeps a tied head from repeating the last token for ever."""
    return norm(rng, shape, gain) * rng.choice([-1.0, 1.0], shape)


def norm1(rng, shape, gain):
    """Around 0: for norms that multiply by 1 + weight."""
    return gain * rng.standard_normal(shape)


def norm1_flip(rng, shape, gain):
    return norm_flip(rng, shape, gain) - 1


def linear(rng, shape, gain):
    """[..., out, in]."""
    return gain / shape[-1] ** 0.5 * rng.standard_normal(shape)


def linear_t(rng, shape, gain):
    """[..., in, out]."""
    return gain / shape[-2] ** 0.5 * rng.standard_normal(shape)


def spread(rng, shape, gain):
    """Evenly spread, shuffled: correction biases that change choices."""
    return rng.permutation(np.linspace(-gain, gain, shape[-1])).reshape(shape) + 0.02 * rng.standard_normal(shape)


# First match of (regular expression, kind, gain) wins; searched in fixture.rules, family.RULES, RULES.
RULES = (
    (r"correction_bias$|correction\.bias$|e_score_correction", spread, 0.5),
    (r"sinks$", normal, 1.0),
    (r"bias$", normal, 0.3),
    (r"norm\w*\.weight$", norm, 0.3),
    (r"lm_head\.weight$", linear, 3.0),
    (r"self_attn\.", linear, 1.5),
    (r"", linear, 2.0),
)


def draw(family, fx, seed, shapes):
    """{published name: float32 array, already rounded}. Each tensor has its own stream: names, not order, decide."""
    tied = fx.config.get("tie_word_embeddings", getattr(family, "TIED_DEFAULT", False))
    plus_one = getattr(family, "NORM_PLUS_ONE", False)
    first = []
    if tied:
        first.append((r"^model\.norm\.weight$", norm1_flip if plus_one else norm_flip, 0.3))
    if plus_one:
        first.append((r"norm\w*\.weight$", norm1, 0.3))
    first.append((r"embed_tokens\.weight$", normal, 0.3 if tied else 1.0))
    rules = [*fx.rules, *getattr(family, "RULES", ()), *first, *RULES]
    f32 = getattr(family, "F32", r"correction_bias$|e_score_correction")
    out, f32_names = {}, set()
    for name, shape in shapes.items():
        kind, gain = next((k, g) for pattern, k, g in rules if re.search(pattern, name))
        rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        a = np.asarray(kind(rng, tuple(shape), gain), dtype=np.float32)
        r = fx.rounded(name, a) if fx.rounded else None
        if r is not None:
            a = np.asarray(r, dtype=np.float32)
        elif re.search(f32, name):
            f32_names.add(name)
        else:
            a = torch.from_numpy(a).to(o.TORCH[fx.store]).float().numpy()
        out[name] = a
    return out, f32_names


# ------------------------------------------------------------------------------------ safetensors side

def write_config(path, cfg):
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(cfg, f, indent=1)
        f.write("\n")


@functools.cache
def _published(text):
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tmp = tempfile.mkdtemp()
    write_config(tmp, json.loads(text))
    cfg = transformers.AutoConfig.from_pretrained(tmp)
    transformers.AutoModelForCausalLM.from_config(cfg, dtype=torch.float32).save_pretrained(tmp)
    with safe_open(os.path.join(tmp, "model.safetensors"), "pt") as f:
        shapes = {n: tuple(f.get_slice(n).get_shape()) for n in f.keys()}
    shutil.rmtree(tmp)
    key = lambda n: [(1, int(x), "") if x.isdigit() else (0 if x == "model" else 2, 0, x) for x in n.split(".")]
    return {n: shapes[n] for n in sorted(shapes, key=key)}


def published(cfg):
    """{name: shape} as the library saves a model of this config: the names of published checkpoints."""
    return _published(json.dumps(cfg))


def write_shards(path, tensors, shards, index):
    """Whole tensors in name order, cut by bytes: experts of one layer may fall into two files."""
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    if shards == 1:
        o.save(tensors, path, "model.safetensors")
        return
    where, used, parts = {}, 0, [{} for _ in range(shards)]
    for n, t in tensors.items():
        i = min(used * shards // total, shards - 1)
        parts[i][n] = t
        where[n] = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        used += t.numel() * t.element_size()
    for i, p in enumerate(parts):
        o.save(p, path, f"model-{i + 1:05}-of-{shards:05}.safetensors")
    if index:
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, f, indent=1)
            f.write("\n")


def write_checkpoint(path, fx, w, f32_names, plain=False):
    """`plain`: what the library is to read (one file, plain tensors); else what the fixture holds."""
    os.makedirs(path, exist_ok=True)
    for f in os.listdir(path):
        if f.endswith((".safetensors", ".index.json", ".gguf")):
            os.remove(os.path.join(path, f))
    cfg = fx.config
    if plain or not fx.disk:
        # Values rounded by `rounded` need not be representable in the storage type.
        wide = lambda n: n in f32_names or (plain and fx.rounded)
        tensors = {n: torch.from_numpy(a).to(torch.float32 if wide(n) else o.TORCH[fx.store]) for n, a in w.items()}
    else:
        cfg, tensors = fx.disk(cfg, w)
    write_config(path, cfg)
    write_shards(path, {k: v.contiguous() for k, v in tensors.items()}, *((1, True) if plain else (fx.shards, fx.index)))


# ------------------------------------------------------------------------------------------ GGUF side

def interleave(a, heads):
    """Rotate-half rows -> rows for interleaved rotation (weights and biases): of each head 0, d/2, 1, d/2+1, ..."""
    return a.reshape(heads, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def rope_of(cfg):
    """Rotation parameters of the (global) layers, whatever spelling the config uses."""
    r = dict(cfg.get("rope_parameters") or cfg.get("rope_scaling") or {})
    local = cfg.get("rope_local_base_freq") or r.get("sliding_attention", {}).get("rope_theta")
    r = dict(r.get("full_attention", r))
    r.setdefault("rope_type", r.get("type", "default"))
    if "rope_theta" not in r and cfg.get("rope_theta") is not None:
        r["rope_theta"] = cfg["rope_theta"]
    return r, local


def meta_base(w, cfg):
    """The keys that llama.cpp's converter writes for every text model, if the config has them."""
    def put(add, *names):
        for n in names:
            if cfg.get(n) is not None:
                return add(cfg[n])

    w.add_block_count(cfg["num_hidden_layers"])
    put(w.add_context_length, "max_position_embeddings")
    put(w.add_embedding_length, "hidden_size")
    put(w.add_feed_forward_length, "intermediate_size")
    put(w.add_head_count, "num_attention_heads")
    put(w.add_head_count_kv, "num_key_value_heads")
    r, local = rope_of(cfg)
    if r["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(r["factor"])
    elif r["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
        for key, add in (("attention_factor", w.add_rope_scaling_yarn_attn_factor), ("beta_fast", w.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", w.add_rope_scaling_yarn_beta_slow)):
            if r.get(key) is not None:
                add(r[key])
    if "rope_theta" in r:
        w.add_rope_freq_base(r["rope_theta"])
    if local is not None:
        w.add_rope_freq_base_swa(local)
    put(w.add_layer_norm_rms_eps, "rms_norm_eps", "norm_eps")
    put(w.add_expert_count, "num_local_experts", "num_experts", "n_routed_experts")
    put(w.add_expert_used_count, "num_experts_per_tok", "num_experts_per_token")
    put(w.add_expert_group_count, "n_group")
    put(w.add_expert_group_used_count, "topk_group")
    if cfg.get("scoring_func"):
        w.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, cfg["scoring_func"].upper()))
    if cfg.get("head_dim") is not None:
        w.add_key_length(cfg["head_dim"])
        w.add_value_length(cfg["head_dim"])


def converted(family, cfg, w):
    """Published tensors -> (name, array) with names the tensor map knows, or GGUF names. Stacks experts
    (`...experts.3.up_proj.weight` -> `...experts.up_proj.weight`), after the family's own changes."""
    tensors = getattr(family, "convert", lambda cfg, t: t.items())(cfg, w)
    stacks = {}
    for name, a in tensors:
        m = re.match(r"(.*\.experts)\.(\d+)\.(.*)$", name)
        if not m:
            yield name, a
            continue
        stacks.setdefault(f"{m[1]}.{m[3]}", {})[int(m[2])] = a
    for name, parts in stacks.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def gguf_name(arch, layers, name):
    if name.startswith(("blk.", "token_embd.", "output", "rope_")):
        return name
    kind = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch]
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    name = name.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward") if re.search(r"experts\.w[123]\.", name) else name
    # The converter refuses what the arch's own map lacks (dense layers of some mixtures); llama's names it then.
    for k in (kind, gguf.MODEL_ARCH.LLAMA):
        got = gguf.get_tensor_name_map(k, layers).get_name(name, try_suffixes=(".weight", ".bias"))
        if got:
            return got
    raise SystemExit(f"the tensor map of {arch} does not know {name}")


def gguf_type(name, a, store):
    keep = r"_norm\.weight$|ffn_gate_inp\.weight$|ffn_gate_inp_shexp\.weight$|indexer\.proj\.weight$"
    return "f32" if a.ndim <= 1 or re.search(keep, name) or not name.endswith(".weight") else store


def write_gguf(path, name, family, fx, w):
    cfg = getattr(family, "gguf_config", lambda c: c)(fx.config)
    g = o.Gguf(path, family.ARCH, f"calypte fixture {name}")
    meta_base(g.w, cfg)
    g.w.add_file_type({"bf16": gguf.LlamaFileType.MOSTLY_BF16, "f16": gguf.LlamaFileType.MOSTLY_F16, "f32": gguf.LlamaFileType.ALL_F32}[fx.store])
    # Converted files with a tokenizer need no such key; ours have none.
    g.w.add_vocab_size(cfg["vocab_size"])
    if hasattr(family, "meta"):
        family.meta(g.w, cfg)
    if fx.meta:
        fx.meta(g.w, cfg)
    for n, a in converted(family, cfg, w):
        n = gguf_name(family.ARCH, getattr(family, "layers", lambda c: c["num_hidden_layers"])(cfg), n)
        if hasattr(family, "put") and family.put(g, n, a, fx):  # e.g. ready-made blocks
            continue
        g.tensor(n, a, gguf_type(n, a, fx.store))
    g.close()
    os.chmod(path, 0o644)


# ------------------------------------------------------------------------------------------- the maker

def families():
    names = sorted(f[:-3] for f in os.listdir(os.path.join(HERE, "families")) if f.endswith(".py") and not f.startswith("_"))
    return {n: importlib.import_module("families." + n) for n in names}


def find(name):
    for f in families().values():
        if name in f.FIXTURES:
            return f, f.FIXTURES[name]
    raise SystemExit(f"no fixture {name}")


def attempt(family, fx, seed, tmp):
    """Draws, lets the library compute; raises Reject."""
    w, f32_names = draw(family, fx, seed, published(fx.config))
    write_checkpoint(tmp, fx, w, f32_names, plain=True)
    model = o.load(tmp)
    ids = o.prompt_ids(seed, fx.config["vocab_size"])
    more = getattr(family, "more", None)
    add = (lambda model, trace: more(fx.config, model, trace)) if more else None
    info, t, _ = o.record(tmp, fx.config, ids, LIMITS | fx.limits, model, add, hidden=False, choice=getattr(family, "choice", o.router_choice))
    return w, f32_names, info, t


def make(name):
    family, fx = find(name)
    tmp = tempfile.mkdtemp()
    w, f32_names, info, t = attempt(family, fx, fx.seed, tmp)
    shutil.rmtree(tmp)
    path = os.path.join(o.FIXTURES, name)
    write_checkpoint(path, fx, w, f32_names)
    o.put_expected(path, {"seed": fx.seed} | info, t)
    if fx.gguf:
        write_gguf(os.path.join(path, "model.gguf"), name, family, fx, w)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(name, f"{size / 1e3:.0f} KB", {k: v["value"] for k, v in info.items() if k.startswith("smallest")}, "distinct", info["distinct_greedy_ids"], flush=True)


def search(name, want, start=1, stop=3000):
    family, fx = find(name)
    tmp, why = tempfile.mkdtemp(), {}
    for seed in range(start, stop):
        try:
            info = attempt(family, fx, seed, tmp)[2]
        except o.Reject as e:
            key = re.sub(r"[-\d.e]+$", "", str(e))
            why[key] = why.get(key, 0) + 1
            continue
        print(name, "seed", seed, {k: v["value"] for k, v in info.items() if k.startswith("smallest")}, "distinct", info["distinct_greedy_ids"], flush=True)
        want -= 1
        if want <= 0:
            break
    print(name, "rejected:", why, flush=True)
    shutil.rmtree(tmp)


if __name__ == "__main__":
    sys.modules["make_families"] = sys.modules["__main__"]  # the families import this module
    args = sys.argv[1:]
    if args[:1] == ["--list"]:
        for f, m in families().items():
            print(f, m.ARCH, *m.FIXTURES)
    elif args[:1] == ["--search"]:
        search(args[1], *map(int, args[2:]))
    else:
        for f, m in families().items():
            for n in m.FIXTURES:
                if not args or f in args or n in args:
                    make(n)
