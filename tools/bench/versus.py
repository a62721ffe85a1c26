#!/usr/bin/env python3
"""Times calypte beside llama.cpp and ik_llama.cpp on the same file: medians of alternating runs, and their ratios.

    cargo build --release -p calypte
    python3 tools/bench/versus.py model.gguf --llama DIR/llama-bench --ik DIR/llama-bench

Each round runs every program once for every test, so that a machine whose speed drifts slows all of them alike; the first
round is not counted. All experts are resident. Needs nothing but Python; how to build the others: README.md beside this.
"""

import argparse
import json
import statistics
import subprocess
import sys


def main() -> None:
    args = arguments()
    tests = [("pp", n) for n in args.prompt] + [("tg", n) for n in args.tokens]
    programs = {"calypte": ours}
    for name, path in (("llama.cpp", args.llama), ("ik_llama.cpp", args.ik)):
        if path:
            programs[name] = theirs(path, ["--repack", "0"] if name == "llama.cpp" else [])
    for model in args.models:
        for threads in args.threads:
            runs = {(program, test): [] for program in programs for test in tests}
            for turn in range(args.runs + 1):
                for test in tests:
                    for name, run in programs.items():
                        speed = run(args, model, threads, test)
                        if turn > 0:
                            runs[name, test].append(speed)
            report(model, threads, tests, programs, runs)


def arguments() -> argparse.Namespace:
    numbers = lambda text: [int(n) for n in text.split(",") if int(n) > 0]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF file")
    parser.add_argument("--calypte", default="target/release/calypte", help="default: %(default)s")
    parser.add_argument("--llama", help="llama-bench of llama.cpp")
    parser.add_argument("--ik", help="llama-bench of ik_llama.cpp")
    parser.add_argument("-p", "--prompt", type=numbers, default=[512], help="prompt lengths (default: 512)")
    parser.add_argument("-n", "--tokens", type=numbers, default=[64], help="tokens to generate (default: 64)")
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2], help="threads (default: 1,2)")
    parser.add_argument("-r", "--runs", type=int, default=5, help="rounds that count (default: %(default)s)")
    return parser.parse_args()


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def wanted(test: tuple[str, int]) -> list[str]:
    kind, n = test
    return ["-p", str(n), "-n", "0"] if kind == "pp" else ["-p", "0", "-n", str(n)]


def ours(args: argparse.Namespace, model: str, threads: int, test: tuple[str, int]) -> float:
    command = [args.calypte, "bench", model, *wanted(test), "-r", "1", "--threads", str(threads), "--expert-cache", "all"]
    return json.loads(output([*command, "--json"]))["tests"][0]["tok_s"]


def theirs(path: str, more: list[str]):
    def run(_args: argparse.Namespace, model: str, threads: int, test: tuple[str, int]) -> float:
        command = [path, "-m", model, *wanted(test), "-r", "1", "-t", str(threads), "-o", "json", *more]
        return json.loads(output(command))[0]["avg_ts"]

    return run


def report(model, threads, tests, programs, runs) -> None:
    print(f"{model}, {threads} thread{'s' if threads > 1 else ''}: median tok/s (lowest to highest)")
    for test in tests:
        own = statistics.median(runs["calypte", test])
        line = f"  {test[0]}{test[1]:<6}"
        for name in programs:
            speeds = runs[name, test]
            median = statistics.median(speeds)
            line += f"  {name} {median:.1f} ({min(speeds):.1f} to {max(speeds):.1f})"
            line += "" if name == "calypte" else f", ratio {own / median:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
