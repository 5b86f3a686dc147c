"""Texts of many scripts, for tests/tokenizer.py and tests/generate_gguf.py."""

import random
import unicodedata

# ---- texts ---

SENTENCES = """The quick brown fox jumps over the lazy dog, and it's said they'll do it again; we've seen 1234567 of them!
In the beginning was the word. I'm sure you're right: he'd said "no", they WEREN'T and IT'S THE SAME, DON'T YOU'LL.
Übermäßig größere Straßen führen nach Österreich, où l'été déjà passé a brûlé les forêts; ¿qué pasó mañana, señor?
Łódź żółć gęślą jaźń, příliš žluťoučký kůň úpěl ďábelské ódy, İstanbul'da ışık, naïve coöperation façade
Съешь же ещё этих мягких французских булок, да выпей чаю. Ёжик живёт в лесу, а ещё в городе № 5.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ἄνδρες Ἀθηναῖοι, στίχος ΣΊΣΥΦΟΣ
我能吞下玻璃而不伤身体。今天天气很好，我们去公园散步吧！人工智能的发展非常迅速，２０２４年。
いろはにほへと ちりぬるを 色は匂へど 散りぬるを。カタカナとひらがなを混ぜる「テスト」です。ｶﾀｶﾅ
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글 자모
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق، ١٢٣٤٥٦٧٨٩٠ ؟ اَلْعَرَبِيَّةُ
दुनिया के सभी लोग समान हैं और उन्हें सम्मान मिलना चाहिए। क्षत्रिय ज्ञान १२३४५ हिन्दी में लिखा हुआ।
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน จงฝ่าฟันพัฒนาวิชาการ ๑๒๓๔
עברית שפה יפה, אך קשה. בְּרֵאשִׁית בָּרָא אֱלֹהִים
Tiếng Việt có nhiều dấu thanh: ă â đ ê ô ơ ư ấ ầ ẩ ẫ ậ
👩‍👩‍👧‍👦 family, 👍🏽 thumbs, 🏳️‍🌈 flag 🇩🇪🇫🇷, 🤷🏻‍♀️ shrug ❤️‍🔥 1️⃣ ☃ ✈️
e\u0301 a\u0308 o\u0302\u0323 n\u0303 \u1100\u1161\u11a8 \u212b \ufb01 \u00bd \u2167 \u1e9b\u0323 q\u0307\u0323 \u0344
int main(void) { for (int i = 0; i < 10; i++) printf("%d\\n", x[i] += 0x1F); return 0; } // ok
def f(self, *args, **kwargs):\n    if not args:\n        return None\n\n\n    return [a ** 2 for a in args]\r\n\r\n
<html><body class="x">a &amp; b</body></html>\t\tSELECT * FROM t WHERE a='b' AND c<>3;
3.14159 1,000,000 -42 1e-05 0xdeadbeef 192.168.0.1 ½ ⅓ ² ³ Ⅷ ① 12:30 2024-01-01 1234 12345678901234567890
""".split(
    "\n"
)
SENTENCES = [
    s.encode().decode("unicode_escape").encode("latin-1").decode() if "\\u" in s or "\\r" in s else s
    for s in SENTENCES
    if s
]
SPACES = [
    " ",
    "  ",
    "   ",
    "     ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    "   \n\n  ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u200b",
    "\u0085",
    "\u2028",
    "\u180e",
]
ODD = [
    "\x00",
    "\x01",
    "\x7f",
    "\ufeff",
    "\ufffd",
    "\u200d",
    "\ufe0f",
    "\u0301",
    "\u0308\u0323",
    "ſ",
    "'ſ",
    "'S",
    "'LL",
    "'Re",
    "İ",
    "ß",
    "▁",
    "▁▁",
    "Ġ",
    "Ċ",
    "<0x41>",
    "<0xE2>",
    "'",
    "''",
    "\U0010ffff",
    "\ue000",
    "\U000e0101",
    "K",
    "’s",
]
WORDS = sorted({w for s in SENTENCES for w in s.split()})
# Characters that random texts consist of; main() removes those that are too new for one of the libraries.
ASSIGNED = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
ASSIGNED_SMALL = [c for c in ASSIGNED if ord(c) < 0x3000]


def corpus(count):
    r = random.Random(2)
    for _ in range(count):
        parts = []
        for _ in range(r.randint(1, 30)):
            parts.append(r.choice(WORDS) if r.random() < 0.8 else r.choice(SENTENCES))
            parts.append(r.choice(SPACES) if r.random() < 0.2 else " " if r.random() < 0.9 else "")
        yield "".join(parts)


def random_text(r, added):
    """Pieces of all kinds; lengths from 0 on."""
    parts = []
    for _ in range(r.choice([0, 1, 1, 2, 3, 5, 8, 13])):
        kind = r.random()
        if kind < 0.2:
            parts.append(r.choice(WORDS))
        elif kind < 0.35:
            parts.append(r.choice(SPACES))
        elif kind < 0.45:
            parts.append(r.choice(ODD))
        elif kind < 0.6:
            parts.append("".join(r.choice(ASSIGNED) for _ in range(r.randint(1, 6))))
        elif kind < 0.75:
            parts.append("".join(r.choice(ASSIGNED_SMALL) for _ in range(r.randint(1, 6))))
        elif kind < 0.85:
            parts.append("".join(r.choice(" \n\ta'sL1.-_\r,é▁") for _ in range(r.randint(1, 12))))
        elif kind < 0.92 and added:
            parts.append(r.choice(added)[: r.choice([99, 99, 99, 3])])
        else:
            parts.append(
                r.choice(["a", " ", "\n", "ab", "1", "é", "\u0301", "▁", "=", "the ", "我"]) * r.randint(1, 70)
            )
    return "".join(parts)
