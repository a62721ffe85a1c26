"""Greedy ids by llama.cpp through the PyPI package xllamacpp, one process per model, since llama.cpp aborts on what it dislikes.

    python llama_greedy.py MODEL N THREADS ID,ID,...        # the last line of output is JSON

With f32 keys and values, no flash attention, no repacking. `ids`: the greedy tokens; `margins`: by how much, in nats, llama.cpp
preferred each to the second; null where it does not say, which is where a token ends within a character.
"""
import json
import os
import subprocess
import sys


def greedy(model, tokens, threads, prompt):
    """{"ids", "margins"}, from a process of its own."""
    words = [sys.executable, os.path.abspath(__file__), model, str(tokens), str(threads), ",".join(map(str, prompt))]
    r = subprocess.run(words, capture_output=True, text=True, errors="replace")
    lines = [line for line in r.stdout.splitlines() if line.startswith('{"ids"')]
    if not lines:
        raise RuntimeError(f"llama.cpp does not run {model}:\n{(r.stdout + r.stderr)[-1500:]}")
    return json.loads(lines[-1])


def main(model, tokens, threads, prompt):
    import xllamacpp as x
    p = x.CommonParams()
    p.model.path = model
    p.n_ctx, p.n_parallel, p.warmup, p.n_gpu_layers = 1024, 1, False, 0
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.no_extra_bufts = True
    p.cpuparams.n_threads = int(threads)
    ids = [int(i) for i in prompt.split(",")]
    request = {"prompt": ids, "n_predict": int(tokens), "temperature": 0, "top_k": 1, "samplers": ["top_k"], "n_probs": 2,
               "ignore_eos": True, "cache_prompt": False, "return_tokens": True, "verbose": True}
    out = x.Server(p).handle_completions(request)
    out = out if isinstance(out, dict) else json.loads(out)
    ids, steps = out["__verbose"]["tokens"], iter(out["choices"][0]["logprobs"]["content"])
    margins, step = [], next(steps, None)
    for token in ids:       # the probabilities lack some tokens but are in order
        if step and step["id"] == token:
            first, second = (t["logprob"] for t in step["top_logprobs"])
            margins.append(first - second)
            step = next(steps, None)
        else:
            margins.append(None)
    print("\n" + json.dumps({"ids": ids, "margins": margins}), flush=True)
    os._exit(0)             # the server's threads would keep the process


if __name__ == "__main__":
    main(*sys.argv[1:])
