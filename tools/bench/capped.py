#!/usr/bin/env python3
"""Times calypte beside llama.cpp when memory is short: each program alone in a memory cgroup, medians of alternating runs.

    cargo build --release -p calypte
    sudo python3 tools/bench/capped.py model.gguf --llama DIR/llama-bench --share 50,25,12.5

A cap is what the model needs besides its experts (weights, keys and values, working memory, program, as `calypte plan` counts them)
plus a share of all experts. calypte is told nothing: it finds the cap by itself. llama.cpp maps the file, and the page cache
that this takes counts for the cap. Both compute the same kind of tokens, noise: the worst that can happen to a cache.
Before every run the page cache is dropped. Linux, root, cgroup v1 or v2; nothing but Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from versus import wanted

NAME = "calypte-capped"
# A run that takes longer is ended, and counts as the most that its speed can have been.
RUN_S_MAX = 300
# Beside what the plan counts: what calypte leaves to the system of whatever it finds (256 MiB at least), and page tables.
SLACK_BYTES = 288 << 20


class Cgroup:
    """A memory cgroup of either version."""

    def __init__(self, bytes_max: int):
        v1 = Path("/sys/fs/cgroup/memory")
        self.v1 = v1.is_dir()
        self.path = (v1 if self.v1 else Path("/sys/fs/cgroup")) / NAME
        try:
            self.path.mkdir(exist_ok=True)
            (self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")).write_text(str(bytes_max))
        except OSError as error:
            sys.exit(f"{self.path}: {error.strerror}; memory cgroups need root, and a system that has them")

    def enter(self) -> None:
        """Moves the calling process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def processes(self) -> list[int]:
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def run(self, command: list[str], time_s_max: float = RUN_S_MAX) -> tuple[str, float]:
        start = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=self.enter, timeout=time_s_max)
        except subprocess.TimeoutExpired:
            return "", time_s_max
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout, time.monotonic() - start

    def close(self) -> None:
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)


def object_of(command: list[str]) -> dict:
    """The JSON object that a program prints; its own words if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}; build it, or say where it is")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def plan_of(calypte: str, model: str, context: int) -> dict:
    return object_of([calypte, "plan", model, "--json", "--no-probe", "--ctx", str(context)])


def fixed_bytes(plan: dict) -> int:
    """What a model needs besides experts."""
    return sum(plan["budget"][part] for part in ("resident_bytes", "kv_bytes", "working_bytes", "program_bytes"))


def cap_bytes(plan: dict, share: float) -> int:
    """The cap that leaves `share` percent of all experts."""
    return fixed_bytes(plan) + SLACK_BYTES + int(plan["expert_bytes_total"] * share / 100)


def main() -> None:
    args = arguments()
    plan = plan_of(args.calypte, args.model, args.prompt + args.tokens)
    fixed, experts = fixed_bytes(plan), plan["expert_bytes_total"]
    print(f"{args.model}: {fixed / 2**20:.0f} MiB besides experts, {experts / 2**20:.0f} MiB of experts; "
          f"{args.threads} threads, {args.runs} runs")
    tests = [t for t in (("pp", args.prompt), ("tg", args.tokens)) if t[1]]
    for share in args.share:
        cap = cap_bytes(plan, share)
        speeds = {}
        for _ in range(args.runs):
            for test in tests:
                for name, run in (("calypte", ours), ("llama.cpp", theirs)):
                    if name == "llama.cpp" and not args.llama:
                        continue
                    subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=True)
                    group = Cgroup(cap)
                    speed = run(args, group, test)
                    group.close()
                    speeds.setdefault((test, name), []).append(speed)
        for test in tests:
            line = f"{share:5.1f} %, cap {cap / 2**20:6.0f} MiB, {test[0]}{test[1]}:"
            medians = {}
            for (of, name), values in speeds.items():
                if of == test:
                    medians[name] = statistics.median(values)
                    spread = f"({min(values):.3g} to {max(values):.3g})"
                    line += f"  {name} {medians[name]:.3g} tok/s {spread}"
            if len(medians) == 2:
                line += f"  ratio {medians['calypte'] / medians['llama.cpp']:.2f}"
            print(line, flush=True)


def ours(args, group: Cgroup, test) -> float:
    out, _ = group.run([args.calypte, "bench", args.model, *wanted(test), "-r", "1", "--no-warmup",
                        "--threads", str(args.threads), "--json"])
    return json.loads(out)["tests"][0]["tok_s"] if out else test[1] / RUN_S_MAX


def theirs(args, group: Cgroup, test) -> float:
    # No warm-up: it alone can take minutes, and repeats the same tokens. Ours has none either.
    out, _ = group.run([args.llama, "-m", args.model, *wanted(test), "-r", "1", "-t", str(args.threads), "--no-warmup", "--repack", "0",
                       "-o", "json"])
    return json.loads(out)[0]["avg_ts"] if out else test[1] / RUN_S_MAX


def arguments() -> argparse.Namespace:
    numbers = lambda text: [float(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--calypte", default="target/release/calypte", help="default: %(default)s")
    parser.add_argument("--llama", help="llama-bench of llama.cpp")
    parser.add_argument("--share", type=numbers, default=[50.0, 25.0, 12.5], help="percent of all experts (default: 50,25,12.5)")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="prompt length; 0 is none (default: %(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens to generate; 0 is none (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads (default: %(default)s)")
    parser.add_argument("-r", "--runs", type=int, default=3, help="rounds (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
