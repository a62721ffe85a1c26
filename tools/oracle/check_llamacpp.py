"""Third opinion: the GGUF fixtures through llama.cpp, greedy, with an f32 cache: the same 32 ids?

    pip install xllamacpp            # llama.cpp as a Python package, with its server
    python check_llamacpp.py [fixture names]

llama.cpp wants a tokenizer and rounds activations to the type of 16-bit weights, so it gets a temporary copy of
the file: every tensor as F32, and a tokenizer of made-up words. Fixtures with extension keys (README.md) are not
expected to agree: llama.cpp ignores those keys.
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import load_file

FIX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "fixtures")


def wide_copy(src, dst, end):
    """The same model in F32 with a dummy tokenizer; `end`: an id that does not occur (llama.cpp bans the end token)."""
    r = gguf.GGUFReader(src)
    arch = r.fields["general.architecture"].contents()
    w = gguf.GGUFWriter(dst, arch)
    for k, f in r.fields.items():
        if k.startswith(("GGUF.", "tokenizer.")) or k in ("general.architecture", "general.file_type"):
            continue
        kind = f.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            w.add_array(k, f.contents())
        else:
            w.add_key_value(k, f.contents(), kind)
    vocab = next(int(t.shape[1]) for t in r.tensors if t.name == "token_embd.weight")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"w{i}" for i in range(vocab)])
    w.add_token_types([1] * vocab)
    w.add_token_merges(["w 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(end)
    w.add_add_bos_token(False)
    for t in r.tensors:
        a = gguf.dequantize(np.asarray(t.data), t.tensor_type).astype(np.float32)
        w.add_tensor(t.name, a.reshape(tuple(int(n) for n in reversed(t.shape))))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(name):
    """In a process of its own: llama.cpp aborts on what it does not like."""
    import xllamacpp as x

    info = json.load(open(os.path.join(FIX, name, "expected.json")))
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "model.gguf")
        end = info["eos_token_id"]
        wide_copy(os.path.join(FIX, name, "model.gguf"), path, end[0] if isinstance(end, list) else end)
        p = x.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_parallel, p.warmup, p.n_gpu_layers = 128, 1, False, 0
        p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
        p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.cpuparams.n_threads = 1
        s = x.Server(p)
        out = s.handle_completions({"prompt": info["prompt_ids"], "n_predict": len(info["greedy_ids"]), "temperature": 0, "top_k": 1,
                                    "return_tokens": True, "ignore_eos": True, "cache_prompt": False, "samplers": ["top_k"], "n_probs": 64})
        out = out if isinstance(out, dict) else json.loads(out)
        steps = out["choices"][0]["logprobs"]["content"]
        got = [t["id"] for t in steps]
        # The whole distribution after the prompt, against the recorded logits.
        logits = load_file(os.path.join(FIX, name, "expected.safetensors"))["prompt_logits"][-1].astype(np.float64)
        logp = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        off = max((abs(t["logprob"] - logp[t["id"]]) for t in steps[0]["top_logprobs"]), default=9)
        want = info["greedy_ids"]
        n = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print("RESULT", name, f"{n}/{len(want)} ids the same, log probabilities after the prompt within {off:.0e} ({len(steps[0]['top_logprobs'])} of them)", "" if n == len(want) else f"(margin there {info['margins'][n]}) got {got[:n + 2]}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run(sys.argv[2])
    names = sys.argv[1:] or sorted(n for n in os.listdir(FIX) if os.path.exists(os.path.join(FIX, n, "expected.json")) and os.path.exists(os.path.join(FIX, n, "model.gguf")))
    for n in names:
        r = subprocess.run([sys.executable, os.path.abspath(__file__), "--one", n], capture_output=True, text=True)
        lines = [l[7:] for l in r.stdout.splitlines() if l.startswith("RESULT ")]
        why = [l for l in (r.stdout + r.stderr).splitlines() if "error" in l.lower() or "ASSERT" in l][:2]
        print(lines[0] if lines else f"{n}: llama.cpp does not run it: {why or r.stderr[-300:]}", flush=True)
