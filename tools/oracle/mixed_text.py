"""A text that is hard on tokenizers: 12,000 lines from a fixed seed, the same here and in crates/text/tests/mixed_text.

The building blocks are in fixtures/text/mixed_parts.json ({kind: [text, ...]}); this file only chooses among them. A
"line" is one piece of text to encode; it may hold line ends itself. Both sides pin a hash of all lines.
"""
import json
import os

LINES = 12_000
SEED = 0xCA1F
MASK = (1 << 64) - 1
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "fixtures", "text")
# First and last of ranges that characters are drawn from, surrogates left out; the last is everything.
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0x10FF), (0x1E00, 0x206F), (0x2070, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0, 0x10FFFF)]


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 32) % n

    def choose(self, items):
        return items[self.below(len(items))]


def character(random):
    first, last = random.choose(RANGES)
    code = first + random.below(last - first + 1)
    return chr(code if not 0xD800 <= code <= 0xDFFF else code - 0x2000)


def line(random, parts):
    kinds = list(parts)  # in the order of the file
    shape = random.below(8)
    out = []
    if shape < 3:  # pieces of any kind, joined by anything
        for _ in range(1 + random.below(14)):
            out.append(random.choose(parts[random.choose(kinds)]))
            out.append(random.choose(parts["joint"]))
    elif shape < 5:  # prose of one kind
        words = parts[random.choose(kinds)]
        for _ in range(2 + random.below(12)):
            out.append(random.choose(words))
            out.append(" " if random.below(5) else random.choose(parts["punctuation"]) + " ")
    elif shape == 5:  # characters at random
        for _ in range(1 + random.below(24)):
            out.append(character(random))
    elif shape == 6:  # runs
        for _ in range(1 + random.below(4)):
            piece = random.choose(parts["run"]) if random.below(2) else random.choose(parts[random.choose(kinds)])
            out.append(piece * (1 + random.below(40)))
            out.append(random.choose(parts["joint"]))
    else:  # one character from anywhere between two pieces
        for _ in range(1 + random.below(6)):
            out.append(random.choose(parts[random.choose(kinds)]))
            out.append(character(random))
    return "".join(out)


def parts():
    with open(os.path.join(FIXTURES, "mixed_parts.json"), encoding="utf-8") as f:
        return json.load(f)


def lines():
    random, p = Random(SEED), parts()
    return [line(random, p) for _ in range(LINES)]


def fnv(data, h=0xCBF29CE484222325):
    """FNV-1a, 64 bits."""
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def text_hash(texts):
    return fnv("\0".join(texts).encode())


if __name__ == "__main__":
    for text in lines():
        print(json.dumps(text))
