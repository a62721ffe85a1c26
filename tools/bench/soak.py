#!/usr/bin/env python3
"""Generates for long under a memory cap and says whether anything crept: speed, anonymous memory, open files.

    cargo build --release -p calypte
    sudo python3 tools/bench/soak.py model.gguf --share 25 --tokens 1000 --runs 10

One process, `--runs` conversations of `--tokens` tokens each, in a memory cgroup as `capped.py` makes it; calypte finds the cap
by itself. Ten times a second the anonymous memory and the open files of the process are looked at. The first conversation fills the
cache and does not count. With `--hog-mib` another process takes so much of the same cgroup in the middle, and calypte must give way.
Linux, root; nothing but Python.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from capped import Cgroup, cap_bytes, plan_of


# What calypte leaves to the system of a small cap.
RESERVE_BYTES = 256 << 20
# How often the process is looked at.
SAMPLE_S = 0.1


def main() -> None:
    args = arguments()
    plan = plan_of(args.calypte, args.model, max(args.prompt, args.tokens))
    cap = cap_bytes(plan, args.share)
    subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=True)
    group = Cgroup(cap)
    samples = []
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(group, samples, stop))
    watcher.start()
    hog = threading.Thread(target=take_memory, args=(group, args, samples, stop))
    hog.start()
    try:
        out, wall_s = group.run([args.calypte, "bench", args.model, "-p", str(args.prompt), "-n", str(args.tokens), "-r", str(args.runs), "--no-warmup",
                                 "--threads", str(args.threads), "--json"], time_s_max=args.time_s_max)
    finally:
        stop.set()
        watcher.join()
        hog.join()
        group.close()
    if not out:
        raise SystemExit(f"ended after {wall_s:.0f} s")
    report = json.loads(out)
    speeds = report["tests"][-1]["runs_tok_s"]
    # When each conversation was over, as far as the process was busy with nothing else at its beginning.
    spent = sum(args.tokens / speed for speed in speeds)
    begun = max(0.0, samples[-1][0] - spent)
    first_end = begun + args.tokens / speeds[0]
    after = [sample for sample in samples if sample[0] > first_end]
    anonymous = [sample[1] for sample in after]
    files = [sample[2] for sample in after]
    print(f"{args.model}, cap with {args.share:g} % of the experts, {args.threads} threads, {args.runs} x {args.tokens} tokens")
    print("tok/s of each conversation: " + " ".join(f"{speed:.2f}" for speed in speeds))
    print(f"last / second: {speeds[-1] / speeds[1]:.3f}")
    quarter = max(1, len(anonymous) // 4)
    print(f"anonymous memory after the first, MiB: lowest {min(anonymous) / 2**20:.1f}, highest {max(anonymous) / 2**20:.1f}; mean of the first "
          f"quarter {mean(anonymous[:quarter]) / 2**20:.1f}, of the last {mean(anonymous[-quarter:]) / 2**20:.1f}")
    # What the cap leaves when nothing of it is used, less the reserve.
    print(f"highest of the whole run {max(sample[1] for sample in samples) / 2**20:.1f}, of a budget of {(cap - RESERVE_BYTES) / 2**20:.1f} at most")
    print(f"open files: {min(files)} to {max(files)}, at the end {files[-1]}; {len(after)} samples")


def take_memory(group: Cgroup, args, samples: list, stop: threading.Event) -> None:
    """After `--hog-after-s` seconds, touches `--hog-mib` MiB in the same cgroup and keeps them to the end."""
    if not args.hog_mib or stop.wait(args.hog_after_s):
        return
    before = samples[-1][1]
    # Slowly, as a program that starts: in half-second steps of 16 MiB.
    touch = (f"import time\nkept = []\nfor _ in range({args.hog_mib} // 16):\n    kept.append(bytearray(b'x') * (16 << 20))\n    time.sleep(0.5)\n"
             "print(flush=True)\ntime.sleep(1e6)")
    process = subprocess.Popen([sys.executable, "-c", touch], preexec_fn=group.enter, stdout=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(3)
    alive = process.poll() is None
    print(f"another process {'took' if alive else 'could not take'} {args.hog_mib} MiB: anonymous memory {before / 2**20:.1f} -> {samples[-1][1] / 2**20:.1f} MiB")
    stop.wait()
    process.kill()
    process.wait()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def watch(group: Cgroup, samples: list, stop: threading.Event) -> None:
    """Appends (seconds, anonymous bytes, open files) of the process in `group` again and again."""
    begun = time.monotonic()
    while not stop.wait(SAMPLE_S):
        for pid in group.processes():
            process = Path("/proc") / str(pid)
            try:
                status = (process / "status").read_text()
                if "calypte" not in status.splitlines()[0]:
                    continue
                anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
                samples.append((time.monotonic() - begun, int(anonymous.split()[1]) << 10, len(list((process / "fd").iterdir()))))
            except OSError:
                pass


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--calypte", default="target/release/calypte", help="default: %(default)s")
    parser.add_argument("--share", type=float, default=25.0, help="percent of all experts (default: %(default)s)")
    parser.add_argument("-p", "--prompt", type=int, default=0, help="tokens of as many prompts before (default: none)")
    parser.add_argument("-n", "--tokens", type=int, default=1000, help="tokens of a conversation (default: %(default)s)")
    parser.add_argument("-r", "--runs", type=int, default=10, help="conversations (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads (default: %(default)s)")
    parser.add_argument("--hog-mib", type=int, default=0, help="memory that another process takes in the middle (default: none)")
    parser.add_argument("--hog-after-s", type=float, default=30.0, help="when it begins to (default: %(default)s)")
    parser.add_argument("--time-s-max", type=int, default=7200, help="give up after this many seconds (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
