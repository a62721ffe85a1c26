#!/usr/bin/env python3
"""How close streaming comes to its limit: time per token beside max(compute when resident, bytes missed / what the disk gives).

    cargo build --release -p calypte
    python3 tools/bench/efficiency.py model.gguf --share 50,25,12.5

In turns, so that a disk that drifts is met in the same mood: the engine's own probe of the disk, a run at each share, the probe
again (the mean of the two counts), and once a round a run with every expert in memory. Greedy text after eight fixed ids; nothing is
remembered. The first half of the tokens is not counted: until the cache is full, a read also waits for the system to hand out memory.
Reads are direct whatever the probe prefers, so the page cache is neither used nor dropped. Linux; nothing but Python.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

from capped import object_of

PROMPT = "11,22,33,44,55,66,77,88"


def main() -> None:
    args = arguments()
    rounds: dict[float, list[tuple[float, float, float, float]]] = {share: [] for share in args.share}
    for _ in range(args.runs):
        compute_ms = resident(args)
        before = probe(args)
        for share in args.share:
            token_ms, missed, hits = decode(args, f"{share:g}%")
            after = probe(args)
            disk_ms = missed / ((before + after) / 2) * 1e3
            rounds[share].append((token_ms, compute_ms, disk_ms, hits))
            before = after
    for share, measured in rounds.items():
        ratios = [token / max(compute, disk) for token, compute, disk, _ in measured]
        token, compute, disk, hits = (statistics.median(column) for column in zip(*measured))
        print(f"{share:5.1f} %: {token:.1f} ms a token, compute alone {compute:.1f}, disk alone {disk:.1f} ({100 * hits:.1f} % hits); "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def probe(args) -> float:
    """Bytes per second of expert-sized reads, as the engine makes them."""
    return object_of([args.calypte, "plan", args.model, "--json", "--probe", "--io", args.io])["disk"]["bytes_per_s"]


def resident(args) -> float:
    """Milliseconds for a token with every expert in memory; the warm-up reads them."""
    command = [args.calypte, "bench", args.model, "-p", "0", "-n", str(args.tokens), "-r", "1", "--threads", str(args.threads),
               "--expert-cache", "all", "--json"]
    return 1e3 / object_of(command)["tests"][0]["tok_s"]


def decode(args, cache: str) -> tuple[float, float, float]:
    """Milliseconds and bytes read for a token, and the share of hits, of the second half of the tokens, by the run's timeline."""
    with tempfile.TemporaryDirectory() as directory:
        timeline = os.path.join(directory, "run.json")
        object_of([args.calypte, "run", args.model, "--prompt-ids", PROMPT, "-n", str(args.tokens), "--ignore-eos", "--temp", "0",
                   "--threads", str(args.threads), "--expert-cache", cache, "--no-learning", "--json", "--trace-out", timeline,
                   "--predictor", args.predictor, "--io", args.io])
        with open(timeline, encoding="utf-8") as file:
            spans = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    tokens = [span for span in spans if span["name"] == "token"]
    if not tokens:
        sys.exit("the run has no token after the first, which is part of the prompt; ask for more with -n, as long as the model goes on")
    tokens = tokens[len(tokens) // 2:]
    begin, end = tokens[0]["ts"], tokens[-1]["ts"] + tokens[-1]["dur"]
    read = sum(span["args"]["bytes"] for span in spans
               if "bytes" in span["args"] and "called off" not in span["name"] and begin <= span["ts"] < end)
    hits, misses = (sum(span["args"][what] for span in tokens) for what in ("hits", "misses"))
    return (end - begin) / 1e3 / len(tokens), read / len(tokens), hits / (hits + misses)


def arguments() -> argparse.Namespace:
    numbers = lambda text: [float(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--calypte", default="target/release/calypte", help="default: %(default)s")
    parser.add_argument("--share", type=numbers, default=[50.0, 25.0, 12.5], help="percent of all experts (default: 50,25,12.5)")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="tokens of a run (default: %(default)s)")
    parser.add_argument("--io", default="uring-direct", help="how weights are read (default: %(default)s); through the page cache this measures the page cache")
    parser.add_argument("--predictor", default="learned", help="who guesses (default: %(default)s)")
    parser.add_argument("-r", "--runs", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
