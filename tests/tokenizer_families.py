"""A tokenizer.json of each family with a small vocabulary that is trained on the texts of tokenizer_texts.py, for
tests/tokenizer.py."""

import json

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tokenizer_texts import *

# ---- tokenizers, each as its family's tokenizer.json has it ---

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(add_prefix_space=False, use_regex=False, trim_offsets=True):
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def sequence(name, *parts):
    return {"type": "Sequence", name: list(parts)}


def replace(a, b, kind="String"):
    return {"type": "Replace", "pattern": {kind: a}, "content": b}


def metaspace(scheme="always", cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def template(before, ids, after=()):
    token = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    a, b = ({"Sequence": {"id": x, "type_id": i}} for i, x in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*map(token, before), a, *map(token, after)],
        "pair": [*map(token, before), a, b, *map(token, after)],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in [*before, *after]},
    }


def train(byte, size, specials=()):
    """(vocab, merges) of BPE. byte: over bytes; else over characters, of which some are left out."""
    t = Tokenizer(models.BPE(unk_token=None if byte else "<unk>"))
    if byte:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        )
    else:
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        trainer = trainers.BpeTrainer(
            vocab_size=size, limit_alphabet=400, special_tokens=list(specials), show_progress=False
        )
    t.train_from_iterator(list(corpus(1500)), trainer)
    model = json.loads(t.to_str())["model"]
    return model["vocab"], model["merges"]


def train_wordpiece(size, lowercase):
    """A vocabulary of WordPiece. Some characters are left out."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, limit_alphabet=300, special_tokens=specials, show_progress=False
    )
    t.train_from_iterator(list(corpus(1500)), trainer)
    return json.loads(t.to_str())["model"]["vocab"]


def bert(lowercase, strip_accents, post_processor, **options):
    vocab = train_wordpiece(2000, lowercase)
    listed = [added(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] + [added("[AS IT IS]", False)]
    result = family((vocab, []), listed, None, {"type": "BertPreTokenizer"}, post_processor)
    result["normalizer"] = {
        "type": "BertNormalizer",
        "clean_text": options.get("clean_text", True),
        "handle_chinese_chars": options.get("ideographs", True),
        "strip_accents": strip_accents,
        "lowercase": lowercase,
    }
    result["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": options.get("cleanup", True)}
    result["model"] = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": options.get("max_word", 100),
        "vocab": vocab,
    }
    return result


BYTE_MODEL = train(True, 3000)
TEXT_SPECIALS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
]
TEXT_MODEL = train(False, 3000, TEXT_SPECIALS + ["<0x%02X>" % b for b in range(256)])
for pair in ("\0", "a"), ("\0", "\0"):  # NUL in a token
    for t in (*pair, "".join(pair)):
        TEXT_MODEL[0].setdefault(t, len(TEXT_MODEL[0]))
    TEXT_MODEL[1].append(list(pair))


def added(content, special=True, **options):
    return {"content": content, "special": special, **options}


def family(
    model, tokens, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, old_merges=False, **options
):
    vocab, merges = dict(model[0]), model[1]
    listed = []
    for t in tokens:
        t = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **t}
        t["id"] = vocab.get(t["content"], max(len(vocab), *(x["id"] + 1 for x in listed)) if listed else len(vocab))
        listed.append(t)
    ids = {t["content"]: t["id"] for t in listed}
    listed.sort(key=lambda t: t["id"])
    if callable(post_processor):
        post_processor = post_processor(ids)
    if old_merges:
        merges = ["%s %s" % tuple(m) for m in merges]
    settings = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": listed,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": {"type": "BPE", **settings, "vocab": vocab, "merges": merges},
    }


LLAMA_TOKENS = [
    added("<|%s|>" % t)
    for t in "begin_of_text end_of_text start_header_id end_header_id eot_id reserved_special_token_0".split()
]
QWEN_TOKENS = [added("<|%s|>" % t) for t in "endoftext im_start im_end".split()] + [
    added(t, False) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")
]
GEMMA_TOKENS = (
    [added(t) for t in TEXT_SPECIALS if t not in ("<s>", "</s>", "[INST]", "[/INST]")]
    + [added("\n" * n, False) for n in range(1, 20)]
    + [added("▁" * n, False) for n in range(2, 20)]
    + [added("<h1>", False)]
)
MISTRAL_TOKENS = [added(t) for t in ("<unk>", "<s>", "</s>")]
TEXT_DECODER = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
TEXT_OPTIONS = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
ADDED_OPTIONS = [
    added("<mask>", lstrip=True),
    added("<right>", rstrip=True),
    added("<both>", lstrip=True, rstrip=True),
    added("word", False, single_word=True),
    added("Été", False, normalized=True),
    added("the", False, normalized=True, single_word=True),
    added("wordy", False),
    added("<mas", False),
    added(" x ", False, normalized=True, lstrip=True),
]


def families():
    b = byte_level
    yield "gpt2", family(
        BYTE_MODEL,
        [added("<|endoftext|>")],
        pre_tokenizer=b(use_regex=True),
        post_processor=b(trim_offsets=False),
        decoder=b(True, True),
        old_merges=True,
    )
    yield "llama3", family(
        BYTE_MODEL,
        LLAMA_TOKENS,
        pre_tokenizer=sequence("pretokenizers", split(LLAMA3), b()),
        post_processor=lambda ids: sequence("processors", b(), template(["<|begin_of_text|>"], ids)),
        decoder=b(True, True),
        ignore_merges=True,
    )
    yield "qwen2.5", family(
        BYTE_MODEL, QWEN_TOKENS, {"type": "NFC"}, sequence("pretokenizers", split(QWEN), b()), b(), b()
    )
    yield "gemma2", family(
        TEXT_MODEL,
        GEMMA_TOKENS,
        replace(" ", "▁"),
        split(" ", "MergedWithPrevious", kind="String"),
        lambda ids: template(["<bos>"], ids),
        sequence("decoders", *TEXT_DECODER),
        **TEXT_OPTIONS
    )
    yield "mistral", family(
        TEXT_MODEL,
        MISTRAL_TOKENS,
        sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        None,
        lambda ids: template(["<s>"], ids),
        sequence("decoders", *TEXT_DECODER, STRIP),
        old_merges=True,
        **TEXT_OPTIONS
    )
    yield "phi3", family(
        TEXT_MODEL,
        MISTRAL_TOKENS + [added("<|%s|>" % t, rstrip=True) for t in ("assistant", "end", "system", "user")],
        sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        None,
        lambda ids: template(["<s>"], ids),
        sequence("decoders", *TEXT_DECODER, STRIP),
        **TEXT_OPTIONS
    )
    yield "mistral-metaspace", family(
        TEXT_MODEL,
        MISTRAL_TOKENS + [added("[INST]"), added("[/INST]")],
        None,
        metaspace("first", False),
        lambda ids: template(["<s>"], ids),
        sequence("decoders", *TEXT_DECODER, STRIP),
        **TEXT_OPTIONS
    )
    yield "gpt-4o", family(
        BYTE_MODEL,
        QWEN_TOKENS,
        None,
        sequence("pretokenizers", split(GPT4O, "Removed", True), b()),
        b(),
        b(),
        ignore_merges=True,
    )
    yield "deepseek", family(
        BYTE_MODEL,
        QWEN_TOKENS,
        sequence("normalizers"),
        sequence("pretokenizers", *map(split, DEEPSEEK), b()),
        b(),
        b(),
    )
    yield "bert", bert(True, None, lambda ids: template(["[CLS]"], ids, ["[SEP]"]))
    yield "bert cased", bert(
        False,
        None,
        lambda ids: {"type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]},
        max_word=6,
        cleanup=False,
    )
    yield "bert accents", bert(True, False, None, clean_text=False, ideographs=False)
    # options that no family above has
    yield "metaspace", family(
        TEXT_MODEL,
        MISTRAL_TOKENS,
        None,
        metaspace("always"),
        lambda ids: template(["<s>"], ids, ["</s>"]),
        metaspace("always"),
        unk_token="<unk>",
    )
    yield "metaspace never", family(
        TEXT_MODEL, MISTRAL_TOKENS, None, metaspace("never"), None, metaspace("never"), unk_token="<unk>", fuse_unk=True
    )
    yield "metaspace old", family(
        TEXT_MODEL,
        MISTRAL_TOKENS,
        None,
        {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        None,
        {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        byte_fallback=True,
    )
    yield "whitespace", family(
        TEXT_MODEL, MISTRAL_TOKENS, {"type": "Lowercase"}, {"type": "Whitespace"}, unk_token="<unk>"
    )
    yield "whitespace split", family(
        TEXT_MODEL,
        MISTRAL_TOKENS,
        {"type": "NFKC"},
        sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False}),
        unk_token="<unk>",
    )
    yield "digits", family(
        TEXT_MODEL,
        ADDED_OPTIONS,
        {"type": "NFD"},
        sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, metaspace("first")),
        None,
        None,
        **TEXT_OPTIONS
    )
    yield "added", family(
        BYTE_MODEL,
        ADDED_OPTIONS,
        sequence("normalizers", {"type": "NFKD"}, {"type": "Lowercase"}),
        b(True, True),
        None,
        b(),
    )
    yield "added text", family(
        TEXT_MODEL,
        ADDED_OPTIONS,
        {"type": "Prepend", "prepend": "▁"},
        None,
        None,
        sequence("decoders", *TEXT_DECODER),
        **TEXT_OPTIONS
    )
    yield "regex normalizer", family(
        TEXT_MODEL,
        ADDED_OPTIONS,
        sequence("normalizers", replace(r"\s{2,}", "▁", "Regex"), replace(r"(?<=\d)[.,]", "", "Regex")),
        split(r"\w+|\W", "Isolated"),
        None,
        None,
        unk_token="<unk>",
    )
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield "split %s %d" % (behavior, invert), family(
                BYTE_MODEL,
                [],
                None,
                sequence(
                    "pretokenizers",
                    split(r"[aeiou ]|\d", behavior, invert),
                    split("e", behavior, invert, "String"),
                    split(r"(?=n)|x*", behavior),
                    b(),
                ),
                None,
                b(),
            )
