"""What the proofs share: the options, running both engines, a table, and bounds that fail the script.

Each proof is a script of its own; `python X.py --help` lists its options. All print a table, one line per bound, and exit
with 1 when a bound is missed.
"""
import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
CHUNK = 512                 # tokens; llama-perplexity scores the second half of each
# llama.cpp with no cache rounding and its plain kernels. --no-repack also keeps it off the AMX buffers, which crash in some
# virtual machines.
EXACT = ["--no-repack", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]


def parser(doc):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", default="proof-data", help="directory for downloads and made files [proof-data]")
    ap.add_argument("--calypte", default=os.path.join(ROOT, "target", "release", "calypte"), help="the program under test")
    ap.add_argument("--llama", metavar="DIR", help="directory with llama-perplexity and its siblings (llama.cpp's build/bin)")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    return ap


class Engines:
    """Both programs, with the options of the command line."""

    def __init__(self, args):
        self.args, self.bin = args, args.calypte
        os.makedirs(args.work, exist_ok=True)
        if not os.path.exists(self.bin):
            sys.exit(f"{self.bin}: not found; build it (cargo build --release -p calypte) or give --calypte")

    def path(self, *names):
        return os.path.join(self.args.work, *names)

    def score(self, model, text=None, chunks=None, more=(), ids=None, chunk=CHUNK):
        """`calypte score` in chunks, as JSON."""
        source = ["--text-file", text] if text else ["--ids-file", ids]
        count = ["--chunks", str(chunks)] if chunks else []
        return self._json(["score", model, "--no-learning", *source, "--chunk", str(chunk), *count, *more])

    def run(self, model, ids, tokens, more=()):
        """Greedy `calypte run` from token ids: the ids generated."""
        given = ["--prompt-ids", ",".join(map(str, ids)), "-n", str(tokens), "--temp", "0", "--ignore-eos"]
        return self._json(["run", model, "--no-learning", *given, *more])["ids"]

    def _json(self, words):
        line = [self.bin, *words, "--json", "--threads", str(self.args.threads)]
        r = subprocess.run(line, capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(f"{' '.join(line)}\n{r.stderr.strip()}")
        return json.loads(r.stdout)

    def llama(self, program, *words, **kw):
        """A program of llama.cpp; its output, stdout and stderr together unless told otherwise."""
        if not self.args.llama:
            sys.exit("this proof compares with llama.cpp: give --llama DIR (README.md says how to build it)")
        line = [os.path.join(self.args.llama, program), *map(str, words)]
        r = subprocess.run(line, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, **kw)
        if r.returncode:
            raise RuntimeError(f"{' '.join(line)}: exit code {r.returncode}\n{(r.stdout + r.stderr)[-1500:]}")
        return r.stdout + r.stderr

    def llama_perplexity(self, model, text, chunks, more=EXACT, chunk=CHUNK):
        """(perplexity, its standard error, running perplexity after each chunk)."""
        # As many tokens in a batch as in a chunk: the result is the same, the working memory far smaller.
        out = self.llama("llama-perplexity", "-m", model, "-f", text, "-c", chunk, "-b", chunk, "--chunks", chunks,
                         "-t", self.args.threads, "--no-warmup", *more)
        final = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", out)
        if not final:
            raise RuntimeError("llama-perplexity gave no final estimate:\n" + out[-1500:])
        running = [float(v) for v in re.findall(r"\[\d+\]([0-9.]+),", out)]
        return float(final[1]), float(final[2]), running

    def llama_ids(self, model, text):
        """Token ids of a file by llama-tokenize."""
        out = self.llama("llama-tokenize", "-m", model, "-f", text, "--ids", "--log-disable")
        return json.loads(re.search(r"\[[\d, \n]*\]", out)[0])


class Report:
    """A table, and the bounds under it."""

    def __init__(self, title):
        self.title, self.missed = title, 0
        print(f"\n{title}\n", flush=True)

    def table(self, head, rows):
        rows = [[str(c) for c in r] for r in [head, *rows]]
        width = [max(len(r[i]) for r in rows) for i in range(len(head))]
        for n, r in enumerate(rows):
            print("| " + " | ".join(c.ljust(w) for c, w in zip(r, width)) + " |")
            if n == 0:
                print("|" + "|".join("-" * (w + 2) for w in width) + "|")
        print(flush=True)

    def bound(self, what, ok, found):
        self.missed += not ok
        print(f"{'ok    ' if ok else 'MISSED'} {what}: {found}", flush=True)

    def end(self):
        print(f"\n{self.title}: " + ("every bound holds" if not self.missed else f"{self.missed} bounds missed"))
        sys.exit(1 if self.missed else 0)


def ratio(ours, theirs):
    return f"{ours / theirs:.6f}"
