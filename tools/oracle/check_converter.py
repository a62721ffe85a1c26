"""Compares every model.gguf with what llama.cpp's own converter makes of the same checkpoint.

    python check_converter.py PATH/TO/llama.cpp [fixture names]

Tensors must have the same names, types, shapes and bytes. Keys are compared too; what differs is printed:
keys that only we write (extensions for what the converter drops, see README.md) and general.* are expected.
The converter wants a tokenizer; it is told to write none.
"""
import json
import os
import sys
import tempfile

sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "gguf-py")] if len(sys.argv) > 1 else []

from pathlib import Path

import gguf
import numpy as np
import torch

from conversion import get_model_class
from conversion.base import ModelBase, ModelType, TextModel

FIX = Path(__file__).resolve().parents[2] / "fixtures"


def read(path):
    r = gguf.GGUFReader(path)
    meta = {k: f.contents() for k, f in r.fields.items() if not k.startswith(("general.", "GGUF."))}
    return meta, {t.name: (t.tensor_type.name, tuple(int(n) for n in t.shape), np.asarray(t.data).tobytes()) for t in r.tensors}


def convert(path, out, ftype):
    cfg = json.load(open(path / "config.json"))
    cls = get_model_class(cfg["architectures"][0])
    cls.set_vocab = lambda self: None
    if cfg["model_type"] == "gemma3_text":  # reads the tokenizer for its size
        tok = {"model": {"vocab": {str(i): i for i in range(cfg["vocab_size"])}}, "added_tokens": []}
        (path / "tokenizer.json").write_text(json.dumps(tok))
    if cfg.get("scoring_func") == "noaux_tc":  # dots1 as published; this version of the converter only knows the other name
        (path / "config.json").write_text(json.dumps(cfg | {"scoring_func": "sigmoid"}))
    # Without an index the converter takes the files as they are.
    m = cls(path, ftype, out, model_name="fixture", eager=True)
    m.write()


def main():
    torch.set_grad_enabled(False)
    names = sys.argv[2:] or sorted(d.name for d in FIX.iterdir() if (d / "config.json").exists() and (d / "model.gguf").exists())
    bad = 0
    for name in names:
        ours = read(FIX / name / "model.gguf")
        kinds = {k for k, shape, _ in ours[1].values() if k != "F32"}
        kind = "BF16" if "BF16" in kinds else "F16" if "F16" in kinds else "F32"
        ftype = {"BF16": gguf.LlamaFileType.MOSTLY_BF16, "F16": gguf.LlamaFileType.MOSTLY_F16, "F32": gguf.LlamaFileType.ALL_F32}[kind]
        with tempfile.TemporaryDirectory() as tmp:
            src = Path(tmp) / "model"
            src.mkdir()
            for f in (FIX / name).iterdir():
                if f.name != "model.gguf" and not f.name.startswith("expected"):
                    (src / f.name).write_bytes(f.read_bytes())
            try:
                convert(src, Path(tmp) / "out.gguf", ftype)
                theirs = read(Path(tmp) / "out.gguf")
            except Exception as e:
                print(f"{name}: the converter fails: {type(e).__name__}: {str(e)[:200]}")
                bad += 1
                continue
        wrong = [f"{n}: {a[:2] if (a := ours[1].get(n)) else 'not ours'} / {b[:2] if (b := theirs[1].get(n)) else 'not theirs'}"
                 for n in sorted(set(ours[1]) | set(theirs[1])) if ours[1].get(n) != theirs[1].get(n)]
        keys = []
        for k in sorted(set(ours[0]) | set(theirs[0])):
            a, b = ours[0].get(k), theirs[0].get(k)
            if a != b and not (isinstance(a, float) and isinstance(b, float) and abs(a - b) < 1e-6 * abs(b)):
                keys.append(f"{k}: {a} / {b}")
        bad += bool(wrong)
        print(f"{name}: {len(ours[1])} tensors", "the same" if not wrong else f"WRONG {wrong}", "; keys ours/theirs:", keys, flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
