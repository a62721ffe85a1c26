"""text/mixed_*.json: the ids of mixed_text.py's 12,000 lines under every split rule and both kinds of SentencePiece.

    mixed_bpe.json, mixed_spm.json, mixed_unigram.json   small vocabularies, as tokenizer.json files
    mixed_expected.json   {text_hash, rules: {name: {pre_tokenizer, normalizer, ignore_merges, ids...}}, spm: ids..., unigram: ids...}
    ids...                {head: ids of the first lines, blocks: a hash per 100 lines, whole: a hash of all lines as one text}
    expressions.json      template_expressions.py, rendered by Jinja2

The byte-level vocabulary is trained without any split rule, so that its tokens reach across every boundary a rule draws:
a rule that cuts elsewhere gives other ids. Ids of byte-level tokenizers are those of the `tokenizers` package; ids of
mixed_spm and mixed_unigram those of the `sentencepiece` package (`sentencepiece`), and of `tokenizers` with the
converted file (`json`), which differ in places: white space at the ends, composed characters, and ties.
"""
import collections
import copy
import datetime
import json
import os
import struct
import tempfile

import sentencepiece as sp
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils.chat_template_utils import _compile_jinja_template

import mixed_text
import template_expressions
from make_templates import NOW

HEAD, BLOCK = 10, 100
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
START = r"[^\r\n\p{L}\p{N}]?"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = f"{START}{UPPER}*{LOWER}+{END}|{START}{UPPER}+{LOWER}*{END}" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
TEKKEN = f"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
NOT_HAN = lambda c: c[:-1] + r"&&[^\p{Han}]]"
KIMI = r"[\p{Han}]+|" + f"{START}{NOT_HAN(UPPER)}*{NOT_HAN(LOWER)}+{END}|{START}{NOT_HAN(UPPER)}+{NOT_HAN(LOWER)}*{END}" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386"
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + TAIL]
DEEPSEEK_LLM = [r"[\r\n]", r"\s?[" + CASED + "]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", ASIAN]
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN]

digits = lambda one: pre_tokenizers.Digits(individual_digits=one)
level = lambda own: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)
split = lambda p: pre_tokenizers.Split(Regex(p), behavior="isolated", invert=False)
patterns = lambda *p: pre_tokenizers.Sequence([split(x) for x in p] + [level(False)])
with_digits = lambda p: pre_tokenizers.Sequence([split(x) for x in p] + [digits(True), level(False)])
# name in GGUF files: (pre-tokenizer, NFC?, ignore_merges)
RULES = {
    "gpt-2": (level(True), False, False), "olmo": (level(True), True, False),
    "smollm": (pre_tokenizers.Sequence([digits(True), level(True)]), False, False), "command-r": (pre_tokenizers.Sequence([digits(True), level(True)]), True, False),
    "falcon": (pre_tokenizers.Sequence([pre_tokenizers.Punctuation(behavior="contiguous"), level(True), digits(False), split("[0-9][0-9][0-9]")]), False, False),
    "llama-bpe": (patterns(CL100K), False, True), "glm4": (patterns(CL100K), False, True), "dbrx": (patterns(CL100K), False, False),
    "qwen2": (patterns(QWEN2), True, False), "hunyuan": (patterns(QWEN2), False, False),
    "qwen35": (patterns(QWEN2.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")), True, False),
    "seed-coder": (patterns(QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")), False, False),
    "bailingmoe": (patterns(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"), False, False),
    "exaone-moe": (patterns(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"), False, False),
    "gpt-4o": (patterns(O200K), False, True), "minimax-m2": (patterns(O200K), False, False), "tekken": (patterns(TEKKEN), False, True), "kimi-k2": (patterns(KIMI), False, True),
    "deepseek-v3": (patterns(*DEEPSEEK_V3), False, False), "deepseek-llm": (with_digits(DEEPSEEK_LLM), False, False), "deepseek-coder": (with_digits(DEEPSEEK_CODER), False, False),
}
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<s>", True), ("<think>", False), ("</think>", False)]
# A few rewritings, for unigram's own normaliser: code points to code points. (The usual NFKC table has 240 kB.)
REWRITE = {"A0": "20", "3000": "20", "2003": "20", "9": "20", "A": "20", "D": "20", "200B": "", "AD": "", "FB01": "66 69", "FB02": "66 6C", "65 301": "E9", "75 308": "FC", "A8": "20 308", "2026": "2E 2E 2E", "2122": "54 4D", "BD": "31 2044 32", "3A9": "3C9", "C5": "E5",
           **{f"{0xFF10 + i:X}": f"{0x30 + i:X}" for i in range(10)}, **{f"{0xFF21 + i:X}": f"{0x41 + i:X}" for i in range(26)}}


def summary(ids, whole=None):
    pack = lambda rows: b"".join(struct.pack(f"<{len(r)}I", *r) + b"\xff\xff\xff\xff" for r in rows)
    out = {"head": ids[:HEAD], "blocks": " ".join(f"{mixed_text.fnv(pack(ids[i:i + BLOCK])):016x}" for i in range(0, len(ids), BLOCK))}
    if whole is not None:
        out["whole"] = f"{mixed_text.fnv(pack([whole])):016x}"
    return out


def write(name, value):
    with open(os.path.join(mixed_text.FIXTURES, name), "w", encoding="utf-8") as f:
        f.write(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def byte_level(lines):
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = level(False)
    base.train_from_iterator(lines[:3000], trainers.BpeTrainer(vocab_size=1200, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), max_token_length=12))
    base.decoder = decoders.ByteLevel()
    for text, special in ADDED:
        (base.add_special_tokens if special else base.add_tokens)([AddedToken(text, special=special, normalized=False)])
    write("mixed_bpe.json", json.loads(base.to_str()))
    out = {}
    for name, (pre, nfc, ignore) in RULES.items():
        spec = json.loads(base.to_str())
        spec["model"]["ignore_merges"] = ignore
        t = Tokenizer.from_str(json.dumps(spec))
        t.pre_tokenizer = pre
        if nfc:
            t.normalizer = normalizers.NFC()
        encode = lambda texts: [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]
        spec = json.loads(t.to_str())
        out[name] = {"pre_tokenizer": spec["pre_tokenizer"], "normalizer": spec["normalizer"], "ignore_merges": ignore, **summary(encode(lines), encode(["\n".join(lines)])[0])}
    return out


def train(lines, kind, **more):
    common = {c for c, _ in collections.Counter("".join(lines)).most_common(360)} - set("\0\n\r")  # the others are left to the bytes
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "text"), "w", encoding="utf-8", newline="") as f:
            f.write("\n".join("".join(c for c in x if c in common) for x in lines[:3000]))
        sp.SentencePieceTrainer.train(input=os.path.join(d, "text"), model_prefix=os.path.join(d, "m"), model_type=kind, byte_fallback=True, vocab_size=1000, character_coverage=1.0,
                                      num_threads=1, minloglevel=2, **more)
        with open(os.path.join(d, "m.model"), "rb") as f:
            data = f.read()
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    return sp.SentencePieceProcessor(model_proto=data), proto


def merges(proto):
    """All pairs that make a piece, best piece first; of one piece, in the order of its left half's score."""
    ids = {p.piece: (i, p.score) for i, p in enumerate(proto.pieces) if p.type == 1}
    out = []
    for piece, (id, score) in ids.items():
        for cut in range(1, len(piece)):
            a, b = piece[:cut], piece[cut:]
            if a in ids and b in ids:
                out.append((-score, ids[a][0], ids[b][0], a, b))
    return [(a, b) for *_, a, b in sorted(out)]


def spm(lines):
    processor, proto = train(lines, "bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True)
    t = Tokenizer(models.BPE(vocab={p.piece: i for i, p in enumerate(proto.pieces)}, merges=merges(proto), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in ("<unk>", "<s>", "</s>")])
    write("mixed_spm.json", json.loads(t.to_str()))
    t.encode_special_tokens = True
    texts = [x.replace("<s>", "(s)").replace("</s>", "(/s)").replace("<unk>", "(unk)") for x in lines]
    return compared(processor, t, texts)


def unigram(lines):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "rules.tsv"), "w") as f:
            f.writelines(f"{a}\t{b}\n" for a, b in sorted(REWRITE.items()))
        processor, proto = train(lines, "unigram", normalization_rule_tsv=os.path.join(d, "rules.tsv"))
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=True))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=False)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")])
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in ("<unk>", "<s>", "</s>")])
    write("mixed_unigram.json", {**json.loads(t.to_str()), "charsmap": charsmap.hex()})
    texts = [x.replace("<s>", "(s)").replace("</s>", "(/s)").replace("<unk>", "(unk)") for x in lines]
    return compared(processor, t, texts)


def compared(processor, t, texts):
    a, b = processor.encode(texts), [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]
    print(sum(x != y for x, y in zip(a, b)), "lines differ between sentencepiece and tokenizers")
    return {"sentencepiece": summary(a), "json": summary(b)}


def expressions():
    out = []
    for template in template_expressions.all_templates():
        try:
            given = copy.deepcopy(template_expressions.VARIABLES)  # some filters change their input
            rendered = _compile_jinja_template(template).render(strftime_now=lambda f: NOW.strftime(f), messages=[], tools=None, documents=None, add_generation_prompt=False, **given)
            out.append({"t": template, "r": rendered})
        except Exception as e:  # whatever Python stops at, Calypte must stop at
            out.append({"t": template, "e": f"{type(e).__name__}: {e}"[:120]})
    write("expressions.json", {"variables": template_expressions.VARIABLES, "cases": out})


def main():
    lines = mixed_text.lines()
    expressions()
    write("mixed_expected.json", {"now": NOW.isoformat(), "text_hash": f"{mixed_text.text_hash(lines):016x}", "rules": byte_level(lines), "spm": spm(lines), "unigram": unigram(lines)})


if __name__ == "__main__":
    main()
