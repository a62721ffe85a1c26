#!/usr/bin/env python3
"""A file cut into shards by llama-gguf-split scores as the whole does, from whichever shard or the directory.

    python split.py --llama DIR
"""
import glob
import os
import shutil

import common
import fetch
import upcycle

TENSORS = 120               # per shard: the dense file has 272 tensors, the upcycled one 302


def main():
    ap = common.parser(__doc__)
    a = ap.parse_args()
    e = common.Engines(a)
    model, text = fetch.model(a.work), fetch.text(a.work)
    moe = e.path("split-moe.gguf")
    upcycle.upcycle(model, moe, 4, 2, permute=True)
    report = common.Report("Shards and whole files, one chunk")
    rows = []
    for name, whole in (("dense", model), ("4 experts", moe)):
        shards = e.path("shards")
        shutil.rmtree(shards, ignore_errors=True)
        os.makedirs(shards)
        e.llama("llama-gguf-split", "--split", "--split-max-tensors", TENSORS, whole, os.path.join(shards, "model"))
        files = sorted(glob.glob(os.path.join(shards, "*.gguf")))
        report.bound(f"{name}: at least three shards", len(files) >= 3, len(files))
        digest = lambda path: e.score(path, text, 1)["chunks"][0]["logits_sha256"]
        want = digest(whole)
        rows.append((name, os.path.basename(whole), want[:16]))
        for given in (files[0], files[-1], shards):
            got = digest(given)
            rows.append((name, os.path.relpath(given, a.work), got[:16]))
            report.bound(f"{name}: {os.path.relpath(given, a.work)} gives the whole file's digest", got == want, got[:16])
        shutil.rmtree(shards)
    os.remove(moe)
    print()
    report.table(("model", "opened", "digest"), rows)
    report.end()


if __name__ == "__main__":
    main()
