"""Small random BERTs and an oracle for tests/embed_models.sh.

    embed_models.py folder NAME FOLDER      writes a model: config.json, weights, tokenizer.json (needs numpy)
    embed_models.py names                   names of the models
    embed_models.py sentences               100 sentences of several scripts, a line each
    embed_models.py compare FOLDER IDS VECTORS [COSINE DIFFERENCE]
                                            compares vectors, a line each, with those that numpy computes in double from
                                            the ids, a line each, in one padded batch with a mask; and, where they are
                                            installed, with those of transformers from the sentences. Prints the smallest
                                            cosine and the largest difference; fails beyond the bounds, for f32 if
                                            none are given

The oracle shares no code with the library, and pads, as transformers does; the library packs.
"""
import json
import math
import pathlib
import sys

import numpy

MIN_COSINE, MAX_DIFFERENCE = 0.99999, 2e-5  # the difference is one of the vectors' own length

BERT = dict(model_type="bert", architectures=["BertModel"], hidden_act="gelu", hidden_size=64, intermediate_size=96,
            num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, type_vocab_size=2,
            layer_norm_eps=1e-12, position_embedding_type="absolute", pad_token_id=0)
# name: (changes of config.json, front of the tensors' names, dtype, bytes of a file at most, files beside it, seed)
MEAN = {"modules.json": [{"type": "sentence_transformers.models.Transformer"},
                         {"type": "sentence_transformers.models.Pooling"},
                         {"type": "sentence_transformers.models.Normalize"}],
        "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False}}
CLS = {"modules.json": [{"type": "sentence_transformers.sentence_transformer.modules.Transformer"},
                        {"type": "sentence_transformers.sentence_transformer.modules.Pooling"}],
       "1_Pooling/config.json": {"embedding_dimension": 64, "pooling_mode": "cls", "include_prompt": True}}
MODELS = {
    "mean": ({}, "", "F32", 1 << 30, MEAN, 1),
    "cls": (dict(layer_norm_eps=1e-5, num_attention_heads=2, type_vocab_size=1), "bert.", "BF16", 1 << 14, CLS, 2),
    "plain": (dict(num_hidden_layers=3, max_position_embeddings=40), "bert.", "F16", 1 << 30, {}, 3),
}

SENTENCES = """How old are you?
What is your age?
The quick brown fox jumps over the lazy dog.
A man is eating food.
A man is eating a piece of bread.
The girl is carrying a baby.
Two men pushed carts through the woods.
A monkey is playing drums.
Someone in a gorilla costume is playing a set of drums.
The stock market fell 3.5% on Monday, its worst day since 2020.
Please send the invoice (no. 4711-B) to accounting@example.com!
Water boils at 100°C; ice melts at 0°C.
e = mc² and a² + b² = c²
"To be, or not to be" — that is the question…
I can't believe it's not butter, she said.
C++, C# and F# aren't the same as C.
Don't panic
ALL CAPITAL LETTERS
snake_case, kebab-case and CamelCase
http://example.com/a/b?c=d&e=%20f#g
x
?

Antidisestablishmentarianism is a long word, pneumonoultramicroscopicsilicovolcanoconiosis a longer one.
Der schnelle braune Fuchs springt über den faulen Hund.
Wie alt bist du?
Ein Mann isst ein Stück Brot.
Straße, Größe, Äpfel, Öl und Übermut
Donaudampfschifffahrtsgesellschaftskapitän
La révolution française a commencé en 1789.
L'été dernier, nous étions à l'île de Ré.
Ça va très bien, merci beaucoup !
Où est la bibliothèque ?
El niño comió una manzana en el jardín.
¿Cuántos años tienes?
¡Qué día tan hermoso!
O coração não tem fronteiras; a ação é já.
Il gatto è sul tavolo perché piove.
De kat krabt de krullen van de trap.
Det är en vacker dag i Malmö.
Rødgrød med fløde på bordet
Hyvää päivää, mitä kuuluu?
Příliš žluťoučký kůň úpěl ďábelské ódy.
Zażółć gęślą jaźń, proszę.
Árvíztűrő tükörfúrógép
Bugün hava çok güzel, İstanbul'da mısın?
Tôi đang học tiếng Việt ở Hà Nội.
Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.
Καλημέρα, τι κάνεις;
Москва является столицей России.
Сколько тебе лет?
Київ — столиця України.
Ёлка зелёная, а йод жёлтый.
Здравей, как си?
Երևանը Հայաստանի մայրաքաղաքն է։
თბილისი საქართველოს დედაქალაქია.
القاهرة هي عاصمة مصر.
كم عمرك؟
تهران پایتخت ایران است.
اردو ایک خوبصورت زبان ہے۔
ירושלים היא עיר עתיקה מאוד.
בן כמה אתה?
भारत की राजधानी नई दिल्ली है।
आप कितने साल के हैं?
বাংলাদেশের রাজধানী ঢাকা।
ਪੰਜਾਬੀ ਇੱਕ ਭਾਸ਼ਾ ਹੈ।
தமிழ் ஒரு செம்மொழி.
తెలుగు ఒక భాష.
ಬೆಂಗಳೂರು ಕರ್ನಾಟಕದ ರಾಜಧಾನಿ.
കേരളം ഒരു സംസ്ഥാനമാണ്.
සිංහල භාෂාව
กรุงเทพเป็นเมืองหลวงของประเทศไทย
ພາສາລາວ
မြန်မာဘာသာ
ភាសាខ្មែរ
አዲስ አበባ የኢትዮጵያ ዋና ከተማ ናት።
北京是中华人民共和国的首都。
你几岁了？
人工智能的发展非常迅速，影响深远。
東京は日本の首都です。
あなたは何歳ですか？
カタカナとひらがな、漢字も使います。
ﾊﾝｶｸ ｶﾀｶﾅ
서울은 대한민국의 수도입니다.
몇 살이에요?
བོད་སྐད་
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ
ᓄᓇᕗᑦ
Emoji: 😀 👍🏽 👩‍👩‍👧 ❤️ 🇩🇪
Mixed: Hello, 世界! Привет, мир! 🌍
a\u00adb\u200bc\u200dd\ufeffe
tab\there, two  spaces,   three
½ ⅓ ① Ⅳ ﬁ ﬂ ™ © ®
naïve café résumé coöperate
nai\u0308ve cafe\u0301
ＦＵＬＬ ｗｉｄｔｈ １２３
[CLS] and [SEP] and [MASK] are special, [cls] is not
the the the the the the the the the the the the the the the the the the the the the the the the the the the the the the
Sentence embeddings map a text to a point such that texts of similar meaning lie close together, which makes search by meaning, clustering and deduplication possible.
1234567890 3.14159 1,000,000 0x1F -17
""".splitlines()


# ---- small models ---


def vocabulary():
    """Letters, alone and behind others, some pairs of them and words; other scripts lack some of theirs."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    others = ".,?!-'\"()¿¡;:" + "αβγδεικλμνοπρστυωабвгдежзиклмнопрстуя" + "北京是中国的首都人日本語東" + "ありますかの"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), *others]
    tokens += ["##" + c for c in "αβγδεικλμνοπρστυωабвгдежзиклмнопрстуя"]
    tokens += [a + b for a in "taoiwsb" for b in "heoarnt"] + ["##" + a + b for a in "eitrn" for b in "rsnde"]
    tokens += ["the", "quick", "brown", "man", "is", "old", "you", "how", "##ing", "sentence", "embed", "##ding", "##s"]
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def tokenizer():
    vocab = vocabulary()
    special = [dict(id=vocab[t], content=t, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False)
               for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around,
                           "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    }


def shapes(config):
    h, f = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], h)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], h)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], h)
    norms = ["embeddings.LayerNorm"]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        for name, rows, cols in (("attention.self.query", h, h), ("attention.self.key", h, h),
                                 ("attention.self.value", h, h), ("attention.output.dense", h, h),
                                 ("intermediate.dense", f, h), ("output.dense", h, f)):
            yield layer + name + ".weight", (rows, cols)
            yield layer + name + ".bias", (rows,)
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
    for name in norms:
        yield name + ".weight", (h,)
        yield name + ".bias", (h,)
    yield "pooler.dense.weight", (h, h)  # in the files, and not used
    yield "pooler.dense.bias", (h,)


def write_folder(name, folder):
    from generate_models import stored, write_safetensors

    changes, front, dtype, limit, beside, seed = MODELS[name]
    config = dict(BERT, vocab_size=len(vocabulary()) + 3, **changes)  # padded, as tables often are
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in {"config.json": config, "tokenizer.json": tokenizer(), **beside}.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(value))
    random = numpy.random.RandomState(seed)
    files, size = [{}], 0
    for tensor, shape in shapes(config):
        values = random.standard_normal(shape).astype(numpy.float32)
        values *= 1 if len(shape) == 1 or "embeddings" in tensor else 1.5 / math.sqrt(shape[-1])
        if tensor.endswith("LayerNorm.weight"):
            values = 1 + values / 4
        data = stored(values, dtype)
        if size and size + len(data) > limit:
            files.append({})
            size = 0
        files[-1][front + tensor] = (dtype, shape, data)
        size += len(data)
    index = {}
    for i, tensors in enumerate(files):
        file = "model.safetensors" if len(files) == 1 else f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        write_safetensors(folder / file, tensors)
        index.update(dict.fromkeys(tensors, file))
    if len(files) > 1:
        text = json.dumps({"metadata": {"total_size": 0}, "weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)


# ---- the oracle ---


def read_weights(folder):
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__" or t["dtype"] not in ("F32", "F16", "BF16"):
                continue
            part = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[t["dtype"]]
            values = numpy.frombuffer(part, kind)
            if t["dtype"] == "BF16":
                values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
            weights[name.removeprefix("bert.")] = values.astype(numpy.float64).reshape(t["shape"])
    return weights


def read_if_there(path):
    return json.loads(path.read_text()) if path.exists() else None


def pooled(folder, hidden, mask):
    """The vectors of texts from those of their tokens, as the folder's files say."""
    modules = read_if_there(folder / "modules.json")
    config = read_if_there(folder / "1_Pooling/config.json") or {}
    if config.get("pooling_mode") == "cls" or config.get("pooling_mode_cls_token"):
        vectors = hidden[:, 0]
    else:
        vectors = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
    if modules is None or any(m["type"].endswith("Normalize") for m in modules):
        vectors = vectors / numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors


def oracle(folder, ids):
    config, w = json.loads((folder / "config.json").read_text()), read_weights(folder)
    n, longest = len(ids), max(map(len, ids))
    padded = numpy.zeros((n, longest), int)
    mask = numpy.zeros((n, longest))
    for i, row in enumerate(ids):
        padded[i, :len(row)], mask[i, :len(row)] = row, 1
    erf = numpy.vectorize(math.erf)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        scale = 1 / numpy.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * scale * w[name + ".weight"] + w[name + ".bias"]

    x = w["embeddings.word_embeddings.weight"][padded] + w["embeddings.position_embeddings.weight"][:longest]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    heads = config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        split = lambda t: t.reshape(n, longest, heads, -1).transpose(0, 2, 1, 3)
        q, k, v = (split(linear(x, layer + "attention.self." + t)) for t in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        scores = numpy.where(mask[:, None, None] > 0, scores, -numpy.inf)
        p = numpy.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        a = (p @ v).transpose(0, 2, 1, 3).reshape(n, longest, -1)
        x = norm(x + linear(a, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
        h = linear(x, layer + "intermediate.dense")
        real = h[mask > 0]  # erf takes most of the time
        h[mask > 0] = real * 0.5 * (1 + erf(real / math.sqrt(2)))
        x = norm(x + linear(h, layer + "output.dense"), layer + "output.LayerNorm")
    return pooled(folder, x, mask)


def by_transformers(folder, sentences):
    """Vectors by transformers, in one padded batch, in f32; None where it is not installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text())
    longest = (read_if_there(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    encode = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    batch = encode(sentences, padding=True, truncation=True, return_tensors="pt",
                   max_length=longest or config["max_position_embeddings"])
    model = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    return pooled(folder, hidden.double().numpy(), batch["attention_mask"].double().numpy())


def differences(got, want):
    """(smallest cosine, largest difference as a part of the vector's length)."""
    length = numpy.linalg.norm(want, axis=-1)
    cosine = (got * want).sum(-1) / numpy.linalg.norm(got, axis=-1) / length
    return cosine.min(), (numpy.abs(got - want).max(-1) / length).max()


def compare(folder, ids_file, vectors_file, min_cosine=MIN_COSINE, max_difference=MAX_DIFFERENCE):
    ids = [list(map(int, line.split())) for line in pathlib.Path(ids_file).read_text().splitlines()]
    got = numpy.array([list(map(float, line.split())) for line in pathlib.Path(vectors_file).read_text().splitlines()])
    if len(ids) != len(SENTENCES) or len(got) != len(SENTENCES):
        sys.exit(f"{len(ids)} lines of ids and {len(got)} vectors for {len(SENTENCES)} sentences")
    against = {"numpy in double": oracle(folder, ids), "transformers": by_transformers(folder, SENTENCES)}
    for name, want in against.items():
        if want is None:
            print(f"skipped: {name}, which is not installed")
            continue
        cosine, difference = differences(got, want)
        print(f"{len(got)} sentences, {name}: the cosine is {cosine:.9f} at least, the difference {difference:.1e} at most")
        if not cosine >= float(min_cosine) or not difference <= float(max_difference):
            sys.exit(f"too far from {name}")


def main(arguments):
    command = arguments[0] if arguments else ""
    if command == "names":
        print(*MODELS)
    elif command == "sentences":
        print(*SENTENCES, sep="\n")
    elif command == "folder":
        write_folder(arguments[1], pathlib.Path(arguments[2]))
    elif command == "compare":
        compare(pathlib.Path(arguments[1]), *arguments[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
