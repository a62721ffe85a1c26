#!/usr/bin/env python3
"""Compare two safetensors files that hold `logits` [T, vocab]: what the reference recorded and what the engine wrote.

    python record_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf want.safetensors      # also holds `ids`
    python compare_logits.py want.safetensors --ids ids.txt                        # writes the ids for the engine
    calypte score SmolLM2-135M-Instruct.Q4_1.gguf --ids-file ids.txt --activations f32 --logits got.safetensors
    python compare_logits.py want.safetensors got.safetensors
"""
import argparse
import numpy as np
from safetensors.numpy import load_file

ap = argparse.ArgumentParser()
ap.add_argument("want")
ap.add_argument("got", nargs="?")
ap.add_argument("--ids", help="write the recorded ids to this file")
a = ap.parse_args()
want = load_file(a.want)
if a.ids:
    open(a.ids, "w").write(",".join(map(str, want["ids"].tolist())))
if a.got:
    w, g = want["logits"], load_file(a.got)["logits"]
    same = int((w.argmax(-1) == g.argmax(-1)).sum())
    print(f"largest difference {np.abs(w - g).max():.3g} (largest logit {np.abs(w).max():.3g}), "
          f"the likeliest token is the same at {same} of {len(w)} positions")
