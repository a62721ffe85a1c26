#!/usr/bin/env python3
"""What knowing the routing some layers ahead could win at best: a queue of reads on one drive beside layers of equal length.

    python3 tools/bench/lookahead.py --layers 24 --misses 2.9 --compute-ms 28 --read-ms 2.8

Misses fall on layers at random (Poisson), every read takes the same time, one after the other, and starts when the layer that many
before begins; a layer ends when its computing and its reads have. No guess is wrong and none is missing, so a real predictor does
worse. Deterministic; nothing but Python.
"""

import argparse
import random
from math import exp

TOKENS = 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, required=True, help="layers with experts")
    parser.add_argument("--misses", type=float, required=True, help="experts missing, a token")
    parser.add_argument("--compute-ms", type=float, required=True, help="computing, a token")
    parser.add_argument("--read-ms", type=float, required=True, help="one read of an expert")
    args = parser.parse_args()
    if args.layers < 1 or args.misses < 0 or args.compute_ms <= 0 or args.read_ms < 0:
        parser.error("there must be a layer and some computing, and nothing can be negative")
    bound = max(args.compute_ms, args.misses * args.read_ms)
    print(f"computing {args.compute_ms:.1f} ms a token, reading {args.misses * args.read_ms:.1f}")
    for ahead in (0, 1, 2, 4, 8):
        token_ms = token(args, ahead)
        print(f"{ahead} layers ahead: {token_ms:.1f} ms a token, {token_ms / bound:.2f} of the larger")


def token(args, ahead: int) -> float:
    """Milliseconds for a token with the routing known that many layers ahead."""
    random.seed(1)
    layers = TOKENS * args.layers
    missing = [poisson(args.misses / args.layers) for _ in range(layers)]
    now = drive_free = 0.0
    arrived = [0.0] * layers
    for layer in range(layers):
        if layer + ahead < layers and missing[layer + ahead]:
            drive_free = max(drive_free, now) + missing[layer + ahead] * args.read_ms
            arrived[layer + ahead] = drive_free
        now = max(now + args.compute_ms / args.layers, arrived[layer])
    return now / TOKENS


def poisson(mean: float) -> int:
    """A count with that mean, by inversion."""
    count, term = 0, exp(-mean)
    total, drawn = term, random.random()
    while drawn > total and term > 0:
        count += 1
        term *= mean / count
        total += term
    return count


if __name__ == "__main__":
    main()
