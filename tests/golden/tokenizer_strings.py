"""Strings for tokenizer comparisons: deterministic, of many kinds, valid UTF-8."""

# ruff: noqa: E501, RUF001 - unusual characters are the point.
import random
from collections.abc import Iterator

SEED = 20240607

WORDS = (
    "brutalist the quick brown fox jumps over lazy dog Hello world don't we'll I'd THEY'RE you've it's O'Neil café déjà vu"
    " naïve über straße Übergrößenträger tokenization internationalization ___init__ snake_case camelCase HTTPServer"
    " x86_64 3.14159 1e-5 0xDEADBEEF 12345 1,000,000 ½ ² Ⅷ ٣٤٥ १२३ ① 𝟘𝟙 ﬁ ſ K İ ı ǅ ẞ"
    " привет мир Ελλάδα עברית العربية हिन्दी ไทย 日本語 中文字符 한국어 ខ្មែរ ქართული Հայերեն አማርኛ தமிழ் ພາສາ བོད"
).split()
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "👍🏽", "❤️", "🤦🏼‍♂️", "😊", "©", "™", "→", "…", "—", "“quoted”", "𝔘𝔫𝔦"]
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "\n\n \n",
    " \t ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u180e",
    "\u200b",
    "\u0085",
    "\u2028",
    "\u202f",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
    "\ufeff",
    " " * 17,
]
CODE = [
    "for (int i = 0; i < n; ++i) {\n    sum += a[i] * b[i];\n}\n",
    "def f(x):\n\treturn x ** 2  # square\n",
    "SELECT * FROM t WHERE a='b' AND c>=10;",
    '<div class="x">&nbsp;</div>',
    "#!/bin/sh\nset -e\n",
    "a->b::c<<=d&&!e||f?g:h",
    "\\begin{align} x^2 &= \\frac{1}{2} \\\\ \\end{align}",
    '{"key": [1, 2.5, null, true], "s": "\\u00e9"}',
    "https://a.b/c?d=e&f=%20#g",
]
CONTROL_LIKE = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|im_",
    "end|>",
    "<|",
    "|>",
    "<s>",
    "</s>",
    "<|im_start|>system\n",
    "<repo_name>",
    "<|start_header_id|>user<|end_header_id|>\n\n",
]
FIXED = [
    "",
    " ",
    "\n",
    "a",
    "brutalist",
    " brutalist",
    "Hello world! Café déjà vu — 123 😊",
    "a  b   c",
    "12345",
    "\n\n \n",
    "ﬁ½",
    "hi😀é漢",
    "e\u0301 o\u0308 \u1112\u1161\u11ab \u0958 \u2126",
    "'S 'T 'RE 'VE 'M 'LL 'D",
    "'ſ 's 'ſt x'ſ",
    "\x00\x01\x7f",
    "a\x00b",
    "  leading",
    "trailing  ",
    "tabs\t\t\tand\n\n\nnewlines   ",
    "\r\r\n\n\r",
    "9" * 50,
    "=" * 80,
    "-" * 33 + "\n",
    "a" * 300,
    "é" * 120,
    "漢" * 90,
    "😀" * 40,
    " " * 100,
    "\n" * 100,
    " \n" * 50,
    "\t \n" * 30 + "x",
]
# Assigned by Unicode 13, so that the tables of different libraries agree about them.
RANGES = [
    (0x20, 0x7E),
    (0xA0, 0x17F),
    (0x180, 0x24F),
    (0x300, 0x36F),
    (0x391, 0x3C9),
    (0x400, 0x4FF),
    (0x5D0, 0x5EA),
    (0x621, 0x64A),
    (0x905, 0x939),
    (0xE01, 0xE3A),
    (0x1100, 0x11FF),
    (0x2000, 0x206F - 10),
    (0x2070, 0x2071),
    (0x2150, 0x218B),
    (0x2190, 0x21FF),
    (0x2460, 0x24FF),
    (0x3000, 0x303F),
    (0x3041, 0x3096),
    (0x30A1, 0x30FF),
    (0x4E00, 0x9FFC),
    (0xAC00, 0xD7A3),
    (0xE000, 0xE010),
    (0xFB00, 0xFB06),
    (0xFF01, 0xFF60),
    (0x10000, 0x1000B),
    (0x1D400, 0x1D454),
    (0x1F600, 0x1F64F),
    (0x20000, 0x20100),
]


def _random_unicode(rng: random.Random, length: int) -> str:
    out = []
    for _ in range(length):
        low, high = rng.choice(RANGES)
        out.append(chr(rng.randint(low, high)))
    return "".join(out)


def _one(rng: random.Random) -> str:
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(["", " "]) + rng.choice(WORDS)
    if kind == 1:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12))) + rng.choice([".", "!", "?\n", "", ":"])
    if kind == 2:
        return "".join(rng.choice([rng.choice(WORDS), rng.choice(SPACES)]) for _ in range(rng.randint(1, 14)))
    if kind == 3:
        return rng.choice(CODE)[rng.randrange(4) :] + rng.choice(SPACES) + rng.choice(CODE)
    if kind == 4:
        return "".join(rng.choice(EMOJI + WORDS + SPACES) for _ in range(rng.randint(1, 10)))
    if kind == 5:
        return "".join(
            str(rng.randint(0, 10 ** rng.randint(1, 9))) + rng.choice(" ,.-\nx") for _ in range(rng.randint(1, 5))
        )
    if kind == 6:
        return "".join(rng.choice(CONTROL_LIKE + WORDS + SPACES) for _ in range(rng.randint(1, 8)))
    if kind == 7:
        return _random_unicode(rng, rng.randint(1, 24))
    return "".join(
        rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'\"_-.,;:!?()[]{} \n\t")
        for _ in range(rng.randint(1, 40))
    )


def strings(count: int) -> Iterator[str]:
    rng = random.Random(SEED)
    yield from FIXED[:count]
    for _ in range(count - len(FIXED)):
        yield _one(rng)
