"""Makes the seed corpus from the fixtures: headers alone, configurations, tokenizers and templates.

Run it from the root of the repository: python3 fuzz/seeds.py
"""

import json
import pathlib
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SEEDS = ROOT / "fuzz" / "corpus-seeds"
HEADER_BYTES_MAX = 24_000
"""Longer seeds slow the fuzzer down and bring nothing new."""


def put(target: str, name: str, data: bytes) -> None:
    directory = SEEDS / target
    directory.mkdir(parents=True, exist_ok=True)
    if len(data) <= HEADER_BYTES_MAX:
        (directory / name).write_bytes(data)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_end(data: bytes) -> int:
    """Where the header of a GGUF file ends."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def skip_value(kind: int) -> None:
        nonlocal at
        if kind == 8:
            length = number("Q")
            at += length
        elif kind == 9:
            inner, count = number("I"), number("Q")
            for _ in range(count):
                skip_value(inner)
        else:
            at += sizes[kind]

    tensors, keys = struct.unpack_from("<QQ", data, 8)
    for _ in range(keys):
        skip_value(8)
        skip_value(number("I"))
    for _ in range(tensors):
        skip_value(8)
        dimensions = number("I")
        at += 8 * dimensions + 12
    return at


def odd_gguf() -> bytes:
    """Every type of value, nested arrays, and tensors of types old and new."""
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    for kind, form, value in [(0, "B", 9), (1, "b", -9), (2, "H", 9), (3, "h", -9), (4, "I", 9), (5, "i", -9),
                              (6, "f", 0.5), (7, "B", 1), (10, "Q", 9), (11, "q", -9), (12, "d", 0.5)]:
        item = struct.pack("<" + form, value)
        keys.append(text(f"k{kind}") + struct.pack("<I", kind) + item)
        keys.append(text(f"a{kind}") + struct.pack("<IIQ", 9, kind, 2) + item * 2)
    keys.append(text("nested") + struct.pack("<IIQIQ", 9, 9, 1, 4, 1) + struct.pack("<I", 3))
    tensors = [text(f"t{kind}") + struct.pack("<IQIQ", 1, 256, kind, 4096 * i)
               for i, kind in enumerate([0, 1, 8, 12, 16, 39, 40, 99])]
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + tensors)


def main() -> None:
    shutil.rmtree(SEEDS, ignore_errors=True)
    put("gguf_header", "every-type", odd_gguf())
    put("safetensors_header", "types", safetensors_types())
    for directory in sorted(FIXTURES.iterdir()):
        name = directory.name
        for path in sorted(directory.glob("model*.gguf")):
            data = path.read_bytes()
            if name.endswith("-a") or name.endswith("-mix"):
                put("gguf_header", name, data[: gguf_end(data)])
        for path in sorted(directory.glob("model*.safetensors"))[:1]:
            data = path.read_bytes()
            if name.startswith(("mixtral-a", "llama-b", "gpt_oss-a", "qwen3_moe-fp8")):
                put("safetensors_header", name, data[: 8 + struct.unpack_from("<Q", data)[0]])
        for path in sorted(directory.glob("config.json")):
            put("config_json", name, path.read_bytes())
        for path in sorted(directory.glob("tokenizer.json")):
            put("tokenizer", f"{name}.json", path.read_bytes())
    data = (FIXTURES / "text" / "tokenizer.gguf").read_bytes()
    put("tokenizer", "text.gguf", data[: gguf_end(data)])
    templates = json.loads((FIXTURES / "text" / "templates.json").read_text())["templates"]
    for name, template in templates.items():
        put("chat_template", name, template.encode())


def safetensors_types() -> bytes:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for dtype, size in [("F32", 8), ("BF16", 4), ("F8_E4M3", 2), ("U8", 2), ("I64", 16), ("F4", 1), ("BOOL", 2), ("new", 3)]:
        header[dtype] = {"dtype": dtype, "shape": [2], "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data


if __name__ == "__main__":
    main()
