"""text/: a small byte-level BPE tokenizer in both formats, with hard texts and their ids.

    tokenizer.json, tokenizer.gguf   the same 500 tokens; the GGUF has no tensors, pre-tokenizer "gpt-2"
    encode.json                      [{text, ids, plain_ids?}]; plain_ids where special tokens are read as plain text
    encode_pre.json                  the same vocabulary behind other pre-tokenizers: {name: {pre_tokenizer, normalizer, ids}}
                                     ids in the order of encode.json
    decode.json                      [{ids, text}] including cut characters (they decode to U+FFFD)

make_glm.py uses `train` for the 320-token tokenizer of glm_moe_dsa-a, so that text prompts reach a model.
"""
import json
import os

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import oracle as o

# Public-domain sentences, and a few lines of code and other scripts so that multi-byte merges exist.
CORPUS = """
It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.
However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well
fixed in the minds of the surrounding families, that he is considered the rightful property of some one or other of their daughters.
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated
to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation, or any
nation so conceived and so dedicated, can long endure. We are met on a great battle-field of that war.
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had
peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the use of a book,"
thought Alice "without pictures or conversations?" So she was considering in her own mind (as well as she could, for the hot day
made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up.
Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and nothing particular
to interest me on shore, I thought I would sail about a little and see the watery part of the world.
Longtemps, je me suis couché de bonne heure. Parfois, à peine ma bougie éteinte, mes yeux se fermaient si vite.
Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind; er hat den Knaben wohl in dem Arm.
Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.
学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？
for i in range(10):
    if i % 2 == 0:
        print(i, "even")
    else:
        return {"key": [1, 2, 3], "name": None}
fn main() { let x = vec![0u8; 16]; println!("{}", x.len()); }
"""
# Added tokens and whether they are special. The others are matched in text too, but kept when special tokens are skipped.
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<think>", False), ("</think>", False)]

# The split rules that published models use.
RULES = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
RULES["glm4"] = RULES["llama-bpe"]


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def pre(name):
    """(pre-tokenizer, normalizer) by the name GGUF files give it."""
    if name == "gpt-2":
        return byte_level(), None
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]), None
    split = pre_tokenizers.Split(Regex(RULES[name]), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, byte_level(regex=False)]), normalizers.NFC() if name == "qwen2" else None


# Pairs that no split rule of the training text would let meet, so that every difference between split rules shows in the ids.
# Written as plain text; "|" separates the two halves.
CROSSING = [
    "1|2", "12|3", "123|4", "3|4", "34|5", "0|1", "6|7", "67|8", "8|9", "5|6", "\n|\n", "\n\n|\n", " |\n", "\r|\n", ".|\n", ")|\n", "!|\n", ";|\n", " | ", "  |  ",
    "    |    ", "\t|\t", "\t|i", "\t|x", "'|S", "'|R", "'|T", " |4", "  |x", " |\t", "(|x", "_|b", "/|e", ".|1", "\n|f", "#|q", "'|s", "\n| ",
]


def train(vocab, name, added, crossing=len(CROSSING)):
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = byte_level()
    extra = vocab - len(added)
    trainer = trainers.BpeTrainer(vocab_size=extra - crossing, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    base.train_from_iterator(CORPUS.strip().split("\n"), trainer)
    model = json.loads(base.to_str())["model"]
    merges, words = [tuple(m) for m in model["merges"]], model["vocab"]
    show = lambda x: byte_level(regex=False).pre_tokenize_str(x)[0][0]  # bytes as the printable letters tokens are written in
    for pair in CROSSING:
        a, b = (show(x) for x in pair.split("|"))
        if a in words and b in words and a + b not in words and len(words) < extra:
            words[a + b] = len(words)
            merges.append((a, b))
    while len(words) < extra:  # fill up to the wanted size
        words[f"unused{len(words)}"] = len(words)
    t = Tokenizer(models.BPE(vocab=words, merges=merges))
    t.pre_tokenizer, norm = pre(name)
    if norm:
        t.normalizer = norm
    t.decoder = decoders.ByteLevel()
    for text, special in added:
        (t.add_special_tokens if special else t.add_tokens)([AddedToken(text, special=special, normalized=False)])
    assert t.get_vocab_size() == vocab, t.get_vocab_size()
    return t


def add_to_gguf(w, t, name, eos, template=None, bos=None):
    """Tokenizer metadata of a GGUF file from a byte-level BPE tokenizer."""
    spec = json.loads(t.to_str())
    special = {a["id"]: a["special"] for a in spec["added_tokens"]}
    tokens = [t.id_to_token(i) for i in range(t.get_vocab_size())]
    kinds = gguf.TokenType
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(name)
    w.add_token_list(tokens)
    w.add_token_types([int(kinds.NORMAL if i not in special else kinds.CONTROL if special[i] else kinds.USER_DEFINED) for i in range(len(tokens))])
    w.add_token_merges([" ".join(m) for m in spec["model"]["merges"]])
    w.add_eos_token_id(t.token_to_id(eos))
    if bos:
        w.add_bos_token_id(t.token_to_id(bos))
    w.add_add_bos_token(False)
    if template:
        w.add_chat_template(template)


def write_json(path, name, v, one_per_line=False):
    with open(os.path.join(path, name), "w", encoding="utf-8") as f:
        if one_per_line:
            f.write("[\n" + ",\n".join(json.dumps(x, ensure_ascii=True) for x in v) + "\n]\n")
        else:
            f.write(json.dumps(v, ensure_ascii=True, separators=(",", ":")) + "\n")


def texts():
    T = [
        "", " ", "  ", "   a", "a   ", "\n", "\n\n", "\n \n", " \n", "\r\n", "\t", "\t\t x", "a\r\nb\r\n\r\nc", "\u00a0", "\u3000x\u3000", "\u200b", "\u2028a\u2029",
        "Hello, world!", "hello", " hello", "  hello", "HELLO'S he'll WE'RE i'd It'S you'Ve don't", "''s'", "it's_it’s", "1", "12", "123", "1234", "12345678901234567890", " 42", "3.14159e-10", "x1y22z333", "１２３ ⅷ ½ ٣٤",
        "for i in range(10):\n    if i % 2 == 0:\n        print(i, \"even\")\n", "\tif(x){return;}\t// done   \n\n\n", "a_b-c+d=e!=f&&g||h<<i>>=j", "{\"key\": [1, 2, {\"a\": null}]}", "C:\\path\\to\\file.txt https://example.org/?q=a%20b&c=d#e", "!!!??...---===", "# Title\n\n* one\n* two\n\n```rust\nfn main() {}\n```",
        "Все счастливые семьи", "学而时习之，不亦说乎？", "日本語とEnglishの混在テキスト", "한국어 띄어쓰기", "العربية من اليمين", "שָׁלוֹם עולם", "हिन्दी में पाठ", "ภาษาไทยไม่มีช่องว่าง", "Ελληνικά άέήίόύώ", "naïve café — “quotes” … œuvre", "cafe\u0301 vs caf\u00e9", "ﬁ ﬂ Ǆ ß ẞ İ ı", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀",
        "😀", "👨‍👩‍👧‍👦 family", "🏳️‍🌈🇫🇷👍🏽", "a😀b😀😀c", "\u0000", "\u0001\u0002\u001b[31mred\u001b[0m\u007f", "\ufffd\ufeffbom", "e" + "\u0301" * 8,
        " " * 7 + "x" + " " * 16 + "y", "\n" * 5 + " " * 3 + "\n", "a" * 40, "the " * 12, "ab\u00adcd\u2060ef",
        "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_end|><|endoftext|>", " <|im_end|> ", "<|im_start", "<|im_start|", "|im_end|>", "<|IM_END|>", "< |im_end| >", "x<|im_end|>y", "<<|im_end|>>", "<|im_end|", "<|<|im_end|>|>", "<think>\nplan\n</think>\n\nanswer", "<think", "a<think>b</think>c", "<think><|im_end|>",
    ]
    return T + [CORPUS.strip()[:400]]


def main():
    path = os.path.join(o.FIXTURES, "text")
    os.makedirs(path, exist_ok=True)
    t = train(500, "gpt-2", ADDED)
    write_json(path, "tokenizer.json", json.loads(t.to_str()))
    g = o.Gguf(os.path.join(path, "tokenizer.gguf"), "llama", "calypte fixture tokenizer")
    add_to_gguf(g.w, t, "gpt-2", "<|im_end|>", "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    g.close()
    T, out = texts(), []
    for text in T:
        row = {"text": text, "ids": t.encode(text, add_special_tokens=False).ids}
        assert t.decode(row["ids"], skip_special_tokens=False) == text
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = False
        if plain != row["ids"]:
            row["plain_ids"] = plain
        out.append(row)
    write_json(path, "encode.json", out, one_per_line=True)
    other = {}
    for name in ("smollm", "qwen2", "llama-bpe"):
        t2 = Tokenizer.from_str(t.to_str())
        t2.pre_tokenizer, norm = pre(name)
        if norm:
            t2.normalizer = norm
        spec = json.loads(t2.to_str())
        other[name] = {"pre_tokenizer": spec["pre_tokenizer"], "normalizer": spec["normalizer"], "ids": [t2.encode(x, add_special_tokens=False).ids for x in T]}
    write_json(path, "encode_pre.json", other)
    cut = []
    for text in ("é", "学而", "😀!", "👨‍👩‍👧", "<think>ok</think><|im_end|>", "Все"):
        ids = t.encode(text, add_special_tokens=False).ids
        for n in range(1, len(ids) + 1):
            cut.append({"ids": ids[:n], "text": t.decode(ids[:n], skip_special_tokens=False), "text_skipping_specials": t.decode(ids[:n], skip_special_tokens=True)})
    write_json(path, "decode.json", cut, one_per_line=True)
    print(len(T), "texts;", {k: sum(a != b["ids"] for a, b in zip(v["ids"], out)) for k, v in other.items()}, "differ by pre-tokenizer")


if __name__ == "__main__":
    main()
