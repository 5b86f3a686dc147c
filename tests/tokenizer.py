"""examples/generate/tokenizer.h against the package `tokenizers`: tokenizers of each family, with vocabularies trained
here on text made here, encode and decode the same texts in both.

    python3 tests/tokenizer.py DRIVER WORK STRINGS [time]

DRIVER is tests/tokenizer_driver.c, WORK a folder for files and STRINGS how many random ones a family. time: measures
the time of loading, encoding and decoding, too, and that no text takes n^2 steps.
"""

import functools
import json
import os
import random
import string
import struct
import subprocess
import sys
import unicodedata

import tokenizers
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from tokenizer_families import *

DRIVER = sys.argv[1]
WORK = sys.argv[2]
STRINGS = int(sys.argv[3])

# Of these every character that all know is compared, behind and in front of letters, digits, spaces and itself.
EVERY_CHARACTER = ("gpt2", "llama3", "qwen2.5", "gpt-4o", "deepseek", "whitespace", "regex normalizer", "bert")

# ---- the comparison ---

failed = compared = 0


def bad(what, *details):
    global failed
    failed += 1
    if failed <= 20:
        print("FAIL", what, *details)


def ask(path, requests):
    """The raw answers to (kind, count, bytes)."""
    data = b"".join(k.encode() + struct.pack("i", n) + body for k, n, body in requests)
    run = subprocess.run([DRIVER, path], input=data, capture_output=True)
    if run.returncode:
        sys.exit("%s: %s" % (path, run.stderr.decode(errors="replace")[:3000]))
    return run.stdout


def take_ids(data, at):
    (n,) = struct.unpack_from("i", data, at)
    return list(struct.unpack_from("%di" % max(n, 0), data, at + 4)) if n >= 0 else n, at + 4 + 4 * max(n, 0)


def byte_fallback_text(t, ids, skip, specials):
    """What a stream writes where `tokenizers` turns a run of byte tokens into U+FFFD: that for each wrong byte alone."""
    out = b""
    for i in ids:
        token = t.id_to_token(i)
        if token is None or (skip and token in specials):
            continue
        out += (
            bytes([int(token[3:5], 16)])
            if len(token) == 6 and token.startswith("<0x")
            else token.replace("▁", " ").encode()
        )
    text, at = "", 0
    while at < len(out):
        for n in (1, 2, 3, 4):
            try:
                text += out[at : at + n].decode()
                at += n
                break
            except UnicodeDecodeError:
                pass
        else:
            text += "\ufffd"
            at += 1
    return text


def save(config, name="tokenizer.json", **options):
    path = os.path.join(WORK, name)
    with open(path, "w") as f:
        f.write(config if isinstance(config, str) else json.dumps(config, **options))
    return path


def keep_what_all_know():
    """Unicode grows: the package, PCRE2, utf8proc and Python may have tables of different years. What one of them takes for
    unassigned, or normalizes in another way, is in no test."""
    config = family(
        BYTE_MODEL, [], None, sequence("pretokenizers", split(r"\p{Cn}", "Removed"), byte_level()), None, byte_level()
    )
    text = "".join(ASSIGNED)
    ids = Tokenizer.from_str(json.dumps(config)).encode(text).ids
    theirs = set(Tokenizer.from_str(json.dumps(config)).decode(ids))
    ids, _ = take_ids(ask(save(config), [("e", len(text.encode()), text.encode())]), 0)
    ours = set(Tokenizer.from_str(json.dumps(config)).decode(ids))
    forms = [(getattr(normalizers, f)(), f) for f in ("NFC", "NFD", "NFKC", "NFKD")]
    known = []
    for c in ASSIGNED:
        around = c + "\u0334" + c  # a mark that goes in front of all others
        if (
            c in theirs
            and c in ours
            and all(n.normalize_str(around) == unicodedata.normalize(f, around) for n, f in forms)
        ):
            known.append(c)
    print("%d of %d assigned characters are known to all libraries" % (len(known), len(ASSIGNED)))
    ASSIGNED[:] = known
    ASSIGNED_SMALL[:] = [c for c in known if ord(c) < 0x3000]


@functools.cache
def is_as_of_bert(c):
    """Whether BERT's steps in `tokenizers`, whose tables are older, take a character for what Python takes it."""
    category = unicodedata.category(c)
    clean = normalizers.BertNormalizer(True, False, False, False).normalize_str("a%sb" % c)
    strip = normalizers.BertNormalizer(False, False, True, False).normalize_str("a%sb" % c)
    is_control = category in ("Cc", "Cf", "Co") and c not in "\t\n\r" or c == "\ufffd"
    pieces = [piece for piece, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str("a%sb" % c)]
    is_punctuation = category[0] == "P" or (c < "\x80" and c in string.punctuation)
    return (
        (clean == "ab") == is_control and (strip == "ab") == (category == "Mn") and (len(pieces) == 3) == is_punctuation
    )


def compare(name, config, count):
    global compared
    path = save(config, ensure_ascii=name != "gpt2")
    text = json.dumps(config)
    t = Tokenizer.from_str(text)
    r = random.Random(name)
    contents = [a["content"] for a in config["added_tokens"]]
    specials = {a["content"] for a in config["added_tokens"] if a["special"]}
    texts = SENTENCES + list(corpus(count // 4)) + [random_text(r, contents) for _ in range(count)]
    if name in EVERY_CHARACTER:
        around = ["a%s1%s %s\n%s%s\u0301" % (c, c, c, c, c) for c in ASSIGNED]
        texts += ["".join(around[i : i + 500]) for i in range(0, len(around), 500)]
    if name.startswith("bert"):
        texts = ["".join(c if c < "\x80" or is_as_of_bert(c) else "x" for c in s) for s in texts]
    requests = [("E" if i % 2 else "e", len(s.encode()), s.encode()) for i, s in enumerate(texts)]
    # bytes that are not UTF-8: as Python's errors="replace"
    for _ in range(count // 4):
        odd = b"".join(
            r.choice(
                [
                    bytes([r.randrange(256)]),
                    r.choice(WORDS).encode()[: r.randint(1, 9)],
                    "é我👍".encode()[r.randrange(4) : r.randint(4, 9)],
                    b" ",
                ]
            )
            for _ in range(r.randint(1, 12))
        )
        requests.append(("E" if len(texts) % 2 else "e", len(odd), odd))
        texts.append(odd.decode("utf-8", "replace"))
    want = [t.encode(s, add_special_tokens=bool(i % 2)).ids for i, s in enumerate(texts)]
    answer, at = ask(path, requests), 0
    for i, s in enumerate(texts):
        ids, at = take_ids(answer, at)
        compared += 1
        if ids != want[i]:
            k = (
                next((k for k, (a, b) in enumerate(zip(ids, want[i])) if a != b), min(len(ids), len(want[i])))
                if isinstance(ids, list)
                else 0
            )
            bad(
                name,
                "encode %r" % s[:200],
                "token",
                k,
                "got",
                ids[k : k + 6] if isinstance(ids, list) else ids,
                "want",
                want[i][k : k + 6],
                [t.id_to_token(x) for x in want[i][max(0, k - 2) : k + 4]],
            )
    # decoding: those ids, and random ones
    lists = want + [
        [r.randrange(-1, t.get_vocab_size() + 2) for _ in range(r.randint(0, 12))] for _ in range(count // 2)
    ]
    answer, at = (
        ask(path, [("D" if i % 2 else "d", len(x), struct.pack("%di" % len(x), *x)) for i, x in enumerate(lists)]),
        0,
    )
    fallback = "ByteFallback" in text
    for i, ids in enumerate(lists):
        parts = struct.unpack_from("%di" % (len(ids) + 1), answer, at)
        at += 4 * len(parts)
        got = answer[at : at + sum(parts)]
        at += len(got)
        compared += 1
        text = t.decode([x for x in ids if x >= 0], skip_special_tokens=bool(i % 2))
        if got != text.encode():
            other = (
                byte_fallback_text(t, [x for x in ids if x >= 0], bool(i % 2), specials)
                if fallback and "\ufffd" in text
                else None
            )
            if other is not None and STRIP in config["decoder"]["decoders"]:
                other = other[other.startswith(" ") :]
            if other is None or got != other.encode():
                bad(name, "decode", ids[:20], "got", got[:200], "want", text.encode()[:200])
        start = 0
        for n in parts:  # each part is whole characters
            try:
                got[start : start + n].decode()
            except UnicodeDecodeError:
                bad(name, "a part of a character was written", ids[:20])
            start += n
    print("%s: %d tokens, %d texts" % (name, t.get_vocab_size(), len(texts) + len(lists)), flush=True)


# ---- names, ends of texts, chat formats ---


def expect(what, got, want):
    global compared
    compared += 1
    if got != want:
        bad(what, "got %r" % (got,), "want %r" % (want,))


CHAT = {
    ("llama3", ""): (
        "llama3",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHow are you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    ("qwen2.5", ""): (
        "qwen3",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello!\n<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n",
    ),
    ("gemma2", ""): (
        "gemma",
        "<bos><start_of_turn>user\nBe brief.\n\nHello!<end_of_turn>\n<start_of_turn>model\nHi.<end_of_turn>\n<start_of_turn>user\nHow are you?<end_of_turn>\n<start_of_turn>model\n",
    ),
    ("phi3", ""): (
        "phi3",
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHello!\n<|end|>\n<|assistant|>\nHi.<|end|>\n"
        "<|user|>\nHow are you?<|end|>\n<|assistant|>\n",
    ),
    ("mistral-metaspace", ""): ("mistral", "<s>[INST] Hello!\n[/INST] Hi.</s>[INST] Be brief.\n\nHow are you?[/INST]"),
    ("mistral", "mistral_v1"): (
        "mistral_v1",
        "<s> [INST] Be brief.\n\nHello!\n [/INST] Hi.</s> [INST] How are you? [/INST]",
    ),
}


def check_names(configs):
    def chat(chosen, first=0, end=4):
        run = subprocess.run([DRIVER, "--chat", path, chosen, str(first), str(end)], capture_output=True, text=True)
        return tuple(run.stdout.split("\n", 1)) if not run.returncode else run.stderr

    for (name, chosen), want in CHAT.items():
        path = save(configs[name])
        expect("chat " + name, chat(chosen), want)
        t = Tokenizer.from_str(json.dumps(configs[name]))
        names = (
            [a["content"] for a in configs[name]["added_tokens"]]
            + [n for n in list(configs[name]["model"]["vocab"])[::50] if "\0" not in n]
            + ["no such token"]
        )
        answer = ask(path, [("T", len(n.encode()), n.encode()) for n in names])
        ids = list(struct.unpack("%di" % len(names), answer))
        expect("token ids " + name, ids, [-1 if t.token_to_id(n) is None else t.token_to_id(n) for n in names])
    path = save(configs["llama3"])
    expect(
        "Qwen 2.5's system message",
        chat("qwen2", 3),
        (
            "qwen2",
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n",
        ),
    )
    expect(
        "no message", chat("", 0, 0), ("llama3", "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n")
    )
    expect("another role", chat("gemma", 3, 5), ("gemma", "refused"))
    expect("a late system message", chat("", 5, 6)[1][:17], "<|begin_of_text|>")
    expect("a late system message", chat("mistral", 2, 6), ("mistral", "refused"))
    expect("another format", chat("vicuna"), "no such format\n")
    ids = {a["content"]: a["id"] for a in configs["llama3"]["added_tokens"]}
    expect("eos by name", take_ids(ask(path, [("S", 0, b"")]), 0)[0], [ids["<|end_of_text|>"], ids["<|eot_id|>"]])
    for value, want in ((7, [7]), ([9, 8], [9, 8])):
        save({"eos_token_id": value}, "generation_config.json")
        expect("eos of generation_config.json", take_ids(ask(path, [("S", 0, b"")]), 0)[0], want)
    save('{"eos_token_id": 7', "generation_config.json")
    refused("generation_config.json", path, "generation_config.json: is not JSON")
    os.remove(os.path.join(WORK, "generation_config.json"))


# ---- files that are wrong ---


def opened(*paths):
    run = subprocess.run([DRIVER, "--open", *paths], capture_output=True, text=True)
    if run.returncode:
        bad("crashed", run.stderr[:3000])
    return run.stdout.splitlines()


def refused(what, path, words):
    got = opened(path)
    expect(what, len(got) == 1 and words in got[0] and got[0] or got, got[0] if got else words)
    if got and (words not in got[0] or not got[0].startswith(os.path.dirname(path))):
        bad(what, got, "should say", words)


def refused_wordpiece():
    base = bert(True, None, None)

    def wrong(what, words, where, key, value):
        changed = json.loads(json.dumps(base))
        changed[where][key] = value
        refused(what, save(changed), words)

    expect("a small WordPiece", opened(save(base)), ["ok"])
    wrong("no unknown token", '"unk_token" should be a string', "model", "unk_token", None)
    wrong("a strange unknown token", 'the vocabulary lacks "unk_token", "[no]"', "model", "unk_token", "[no]")
    wrong("no prefix", '"continuing_subword_prefix" should be a string', "model", "continuing_subword_prefix", 1)
    wrong("a long word", '"max_input_chars_per_word" should be', "model", "max_input_chars_per_word", -1)
    wrong("accents", '"strip_accents" should be true or false', "normalizer", "strip_accents", 1)
    base["post_processor"] = {"type": "BertProcessing", "cls": ["[CLS]", 2]}
    refused("no [SEP]", save(base), '"sep" should be a token and its id')
    base["post_processor"]["sep"] = ["[SEP]", -3]
    refused("a negative [SEP]", save(base), 'the id of "[SEP]" should be a whole number')


def check_wrong_files():
    model = (dict(list(BYTE_MODEL[0].items())[:300]), [])
    model[1].extend(m for m in BYTE_MODEL[1] if all(x in model[0] for x in (*m, "".join(m))))
    base = family(
        model,
        LLAMA_TOKENS,
        {"type": "NFC"},
        sequence("pretokenizers", split(QWEN), byte_level()),
        lambda ids: template(["<|begin_of_text|>"], ids),
        byte_level(),
    )
    expect("a small file", opened(save(base)), ["ok"])

    def wrong(what, words, *where):
        *keys, value = where
        changed = json.loads(json.dumps(base))
        at = changed
        for k in keys[:-1]:
            at = at[k]
        if value is None:
            del at[keys[-1]]
        else:
            at[keys[-1]] = value
        refused(what, save(changed), words)

    a, b = list(model[0])[:2]
    wrong("no model", 'has no "model"', "model", None)
    wrong("no vocabulary", 'the model has no "vocab"', "model", "vocab", None)
    wrong("no merges", 'the model has no "merges"', "model", "merges", None)
    wrong("a merge of three", "merge 0 is not of two strings", "model", "merges", [[a, b, a]])
    wrong("a merge of one word", "merge 0 is not of two strings", "model", "merges", ["ab"])
    wrong("a merge of three words", "merge 0 is not of two strings", "model", "merges", ["a b c"])
    wrong("a merge of a number", "merge 0 is not of two strings", "model", "merges", [7])
    wrong("an unknown token in a merge", "the vocabulary lacks the second", "model", "merges", [[a, "no such"]])
    wrong("an unknown merge", "the vocabulary lacks both together", "model", "merges", [[a, b]])
    for value in (-1, 1.5, 1 << 24, 1e300, "1", [1]):
        wrong("an id of %r" % value, "should be a whole number from 0 to", "model", "vocab", a, value)
        wrong("an added token's id of %r" % value, "should be a whole number from 0 to", "added_tokens", 0, "id", value)
    wrong("a long token", "has more than 65536 bytes", "model", "vocab", "x" * 70000, 5)
    wrong("another model", 'the model "Unigram" is not supported', "model", "type", "Unigram")
    refused_wordpiece()
    wrong("dropout", '"dropout" of the model is not supported', "model", "dropout", 0.1)
    wrong("a suffix", '"end_of_word_suffix" of the model is not supported', "model", "end_of_word_suffix", "</w>")
    wrong("a flag that is none", '"byte_fallback" should be true or false', "model", "byte_fallback", "yes")
    wrong("a normalizer", 'the normalizer "Precompiled" is not supported', "normalizer", {"type": "Precompiled"})
    wrong("a normalizer without a type", 'the normalizer "" is not supported', "normalizer", {"a": 1})
    wrong("a normalizer that is none", 'a part of "normalizers" should be an object', "normalizer", "NFC")
    wrong(
        "a pre_tokenizer",
        'the pre_tokenizer "UnicodeScripts" is not supported',
        "pre_tokenizer",
        {"type": "UnicodeScripts"},
    )
    wrong("a decoder", 'the decoder "CTC" is not supported', "decoder", {"type": "CTC"})
    wrong(
        "a decoder behind Fuse",
        "behind Fuse or ByteLevel only",
        "decoder",
        sequence("decoders", {"type": "Fuse"}, replace("a", "b")),
    )
    wrong(
        "a post_processor",
        'the post_processor "RobertaProcessing" is not supported',
        "post_processor",
        {"type": "RobertaProcessing"},
    )
    wrong(
        "a template's token",
        'a template with a token that "special_tokens" lacks',
        "post_processor",
        "special_tokens",
        {},
    )
    wrong("a template without a text", "a template should have the sequence A once", "post_processor", "single", [])
    wrong("many steps", "more than 32 steps", "normalizer", sequence("normalizers", *[{"type": "NFC"}] * 33))
    wrong("a behavior", 'no such "behavior": Joined', "pre_tokenizer", split("a", "Joined"))
    wrong("an empty pattern", '"pattern" is an empty string', "pre_tokenizer", split("", kind="String"))
    wrong("an added token without content", 'an added token without "content"', "added_tokens", 0, "content", None)
    for pattern, words in (
        (r"a(", "missing closing parenthesis"),
        (r"[a[bc]]", "a class inside a class"),
        (r"[a&&b]", "&& is not"),
        (r"\bx", "this escape"),
        (r"(?m:.)", "this group"),
        (r"a{2}+", "}+ is not"),
        (r"[\W]", r"\W in a class"),
        (r"\p{", r"this \p{..}"),
        ("x\\", "a \\ at the end"),
        (r"\p{Klingon}", "unknown property"),
        (r"\u12", r"this \u"),
        (r"(?<n>a)", "this group"),
        (r"[]a]", "a class that begins with ]"),
    ):
        wrong("the pattern " + pattern, words, "pre_tokenizer", split(pattern))
    refused("no file", os.path.join(WORK, "none.json"), "cannot open it")
    refused("something behind", save(json.dumps(base) + "}"), "is not JSON from byte")
    refused("an array", save("[]"), "should be an object")
    refused("an empty file", save(""), "is not JSON from byte")
    refused("many brackets", save("[" * 100000), "is not JSON from byte")
    for text in (
        '{"a" 1}',
        '{"a":1,}',
        "[1,]",
        "{1:2}",
        "[01]",
        "[1.]",
        "[-]",
        "[1e]",
        "[tru]",
        '["\\ud800"]',
        '["\\x"]',
        '["\t"]',
        '["a]',
    ):
        refused("the JSON " + text, save(text), "is not JSON from byte")
    path = save("")
    with open(path, "wb") as f:
        f.write(json.dumps(base).encode()[:200] + b"\xff")
    refused("no UTF-8", path, "byte 200 is not UTF-8")
    with open(path, "wb") as f:
        f.truncate(300 << 20)
    refused("a huge file", path, "at most are read")
    # cut short, and with some bytes changed
    good, r, paths = json.dumps(base, ensure_ascii=False).encode(), random.Random(3), []
    for i in range(300):
        paths.append(os.path.join(WORK, "wrong%d.json" % i))
        data = bytearray(good[: r.randrange(len(good))] if i % 3 == 0 else good)
        for _ in range(r.randint(1, 4) if i % 3 else 0):
            k = r.randrange(len(data)) if i % 2 else r.choice([r.randrange(3000), len(data) - 1 - r.randrange(2000)])
            data[k : k + r.randint(0, 3)] = r.choice(
                [b"", b'"', b"[", b"}", b"0", b"9", b"-", b"null", b"\\", b",", bytes([data[k] ^ 1]), b'{"a":1}']
            )
        with open(paths[-1], "wb") as f:
            f.write(data)
    lines = opened(*paths)
    expect("an answer for each file", len(lines), len(paths))
    for i, line in enumerate(lines):
        if not (line == "ok" and i % 3) and not line.startswith(paths[i] + ": "):
            bad("a wrong file", line)
        os.remove(paths[i])
    print("wrong files: %d of %d were still right" % (lines.count("ok"), len(lines)))


# ---- time ---


def check_time():
    """A vocabulary of the size of Gemma's; and texts that would take n^2 steps if anything did."""
    r = random.Random(4)
    vocab, merges = dict(TEXT_MODEL[0]), list(TEXT_MODEL[1])
    tokens = [t for t in vocab if t not in TEXT_SPECIALS and not t.startswith("<0x")]
    seen = {tuple(m) for m in merges}
    letters = [t for t in tokens if len(t) == 1]
    while len(vocab) < 256000:  # words with all their parts
        word = "".join(r.choice(letters) for _ in range(7))
        for n in range(2, 8):
            for k in range(0, 8 - n):
                if word[k : k + n] not in vocab:
                    vocab[word[k : k + n]] = len(vocab)
                    tokens.append(word[k : k + n])
    for t in sorted(tokens, key=len):  # as in Gemma's, all ways to make a token
        for k in range(1, len(t)):
            if len(merges) < 580000 and t[:k] in vocab and t[k:] in vocab and (t[:k], t[k:]) not in seen:
                merges.append([t[:k], t[k:]])
    config = family(
        (vocab, merges),
        GEMMA_TOKENS,
        replace(" ", "▁"),
        split(" ", "MergedWithPrevious", kind="String"),
        lambda ids: template(["<bos>"], ids),
        sequence("decoders", *TEXT_DECODER),
        **TEXT_OPTIONS
    )
    compare("large", config, STRINGS // 4)
    large = save(config, "large.json", ensure_ascii=False, indent=2)
    text = "\n".join(corpus(6000))
    configs = dict(families())
    texts = {
        "text": text,
        "spaces": " " * 1000000,
        "one letter": "a" * 1000000,
        "one word": "".join(r.choice("etaoinshrdlu") for _ in range(1000000)),
        "marks": "a" + "\u0323\u0301" * 200000,
        "lines": "\n" * 1000000,
    }
    print("%d tokens, %d merges, %.0f MB" % (len(vocab), len(merges), os.path.getsize(large) / 1e6))
    for name, path in (
        ("large", large),
        *((n, save(configs[n], n + ".json")) for n in ("gpt2", "llama3", "qwen2.5", "gemma2", "mistral")),
    ):
        for what, text in texts.items():
            size = len(text.encode())
            with open(os.path.join(WORK, "text"), "w", newline="") as f:
                f.write(text)
            run = subprocess.run(
                [DRIVER, "--time", path, os.path.join(WORK, "text")], capture_output=True, text=True, timeout=300
            )
            if run.returncode:
                bad(name, what, run.stderr[:1000])
                continue
            load, encode, decode, count = map(float, run.stdout.split())
            if what == "text" or name == "large":
                print(
                    "%s, %s: load %.2f s, encode %.1f MB/s, decode %.1f MB/s, %.2f bytes a token"
                    % (name, what, load, size / encode / 1e6, size / decode / 1e6, size / count)
                )
            # 1 MB at the slowest rate seen takes 0.3 s; n^2 steps would take an hour
            if encode > 60:
                bad(name, what, "took %.0f s" % encode)
    os.remove(large)


def main():
    keep_what_all_know()
    configs = dict(families())
    for name, config in configs.items():
        compare(name, config, STRINGS if name.split()[0] == name else STRINGS // 4)
    check_names(configs)
    check_wrong_files()
    if "time" in sys.argv:
        check_time()
    print(
        "%s: %d texts compared with tokenizers %s, %d differ"
        % ("failed" if failed else "passed", compared, tokenizers.__version__, failed)
    )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
