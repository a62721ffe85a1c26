#!/usr/bin/env python3
"""Makes the tables of docs/residency.md from two traces. Standard library only.

    table.py CALYPTE CODE.trace GENERAL.trace > tables.md

Every setting is replayed on both traces. Where a policy has a parameter, the value that closes most of the gap from LRU to
Belady on one trace (mean over 2, 3 and 4 x k slots) is reported on the other. All results also go to replay-table.json in
the present directory, one object per setting as `calypte replay --json` prints it.
"""

import json
import subprocess
import sys

SLOTS = ["1k", "1.5k", "2k", "3k", "4k", "8k"]
TUNED_ON = ["2k", "3k", "4k"]
SWEEPS = {
    "dfreq": [4, 8, 16, 32, 64],
    "successor": [4, 6, 8, 12, 16, 24],
}
PLAIN = ["lru", "lfu", "lfru", "s3fifo", "least_stale", "eam", "expert_map", "spac", "elb", "forecast", "belady", "belady_bypass"]
LISTENERS = ["least_stale", "spac", "elb", "successor", "forecast"]
PREDICTORS = ["prev_token", "trajectory", "draft_tokens", "draft_tokens:4:90:90"]


def replay(calypte, trace, policies, predictors, extra=()):
    """{(policy, predictor, slots as written): result}"""
    found = {}
    for slots in SLOTS:
        command = [calypte, "replay", trace, "--json", "--slots", slots]
        command += ["--policy", ",".join(policies), "--predictor", ",".join(predictors), *extra]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            result = json.loads(line)
            found[result["policy"], result["predictor"], slots] = result
    return found


def cell(result):
    gap = result["gap_closed"]
    gap = "" if gap is None or abs(gap) > 5 else f" ({100 * gap:.0f})"
    return f"{100 * result['hit_rate']:.1f}{gap}"


def mean_gap(results, policy, predictor="none"):
    return sum(results[policy, predictor, slots]["gap_closed"] for slots in TUNED_ON) / len(TUNED_ON)


def rows(title, results, names):
    print(f"\n{title}\n")
    print("| policy | predictor | " + " | ".join(s.replace("k", " k") for s in SLOTS) + " |")
    print("|---|---|" + "---|" * len(SLOTS))
    for policy, predictor in names:
        cells = " | ".join(cell(results[policy, predictor, slots]) for slots in SLOTS)
        print(f"| `{policy}` | `{predictor}` | {cells} |")


def main(calypte, code, general):
    sweeps = [f"{name}:{value}" for name, values in SWEEPS.items() for value in values]
    traces = {}
    for name, path in [("code", code), ("general", general)]:
        results = replay(calypte, path, PLAIN + ["dfreq", "successor"] + sweeps, ["none"])
        results |= replay(calypte, path, LISTENERS, PREDICTORS)
        traces[name] = results
    for tuned, held_out in [("code", "general"), ("general", "code")]:
        print(f"\n## Tuned on `{tuned}`, reported on `{held_out}`")
        names = []
        for name, values in SWEEPS.items():
            best = max(values, key=lambda value: mean_gap(traces[tuned], f"{name}:{value}"))
            names.append((f"{name}:{best}", "none"))
        names = [(p, "none") for p in PLAIN] + names
        names.sort(key=lambda n: mean_gap(traces[held_out], n[0]))
        rows("Without hints:", traces[held_out], names)
        rows("With hints:", traces[held_out], [(p, q) for q in PREDICTORS for p in LISTENERS])
    print("\n## Parameters: mean share of the gap closed at 2, 3 and 4 k, in percent\n")
    print("| policy | code | general |\n|---|---|---|")
    for policy in sweeps:
        print(f"| `{policy}` | " + " | ".join(f"{100 * mean_gap(traces[t], policy):.1f}" for t in traces) + " |")
    print("\n## Predictors: recall = precision at k, one layer ahead, in percent\n")
    print("| predictor | code | general |\n|---|---|---|")
    for predictor in PREDICTORS:
        shown = (f"{100 * traces[t]['elb', predictor, '2k']['recall']:.1f}" for t in traces)
        print(f"| `{predictor}` | " + " | ".join(shown) + " |")
    json.dump({t: list(r.values()) for t, r in traces.items()}, open("replay-table.json", "w"))


if __name__ == "__main__":
    main(*sys.argv[1:])
