"""Seeded strings that tokenizers get wrong: many languages, code, emoji, malformed UTF-8, spaces, long runs.

Strings are bytes, since some are no UTF-8; as_text() is what a library that takes text sees of them.
"""

import random

WORDS = """the of and to in that was his he it with is for as had you not be her on at by which have or from this him
but all she they were my are me one their so an said them we who would been will no when there if more out up into do
any your what has man could other than our some very time upon about may its only now like little then can made great
Don't I'll we've THEY'RE it's O'Neill you'd ain't naïve café résumé Zürich Straße coöperate œuvre fiancée Ærøskøbing
Привет мир как дела сегодня хорошая погода Москва ёлка Γειά σου κόσμε ελληνικά αλήθεια مرحبا بالعالم العربية كتاب
שלום עולם עברית नमस्ते दुनिया हिन्दी में लिखा বাংলা ভাষা தமிழ் மொழி สวัสดีชาวโลก ภาษาไทย ខ្មែរ မြန်မာ ქართული
հայերեն አማርኛ 你好世界 今天天气很好 中文分词 東京都 こんにちは カタカナ ﾊﾝｶｸ 안녕하세요 한국어 문장 Việt Nam tiếng Việt
İstanbul ıspanak ſtraße ſ ﬁnd ﬂow ǅ ǈ Å Å e\u0301 a\u030a\u0323 n\u0303o q\u0307\u0323 각 ㄱㅏ ½ ² Ⅷ ٣٤٥ ①② ㊙ ª º µ ½kg""".split()

CODE = [
    "def f(x, *args):\n    return [i ** 2 for i in range(x) if i % 3 != 0]\n",
    "#include <vector>\nint main(int argc, char** argv) {\n\treturn argc>1 ? std::stoi(argv[1]) : 0;\n}\n",
    "for(let i=0;i<n;i++){a[i]+=`${b}_${c}`;}\r\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 10 GROUP BY 1;",
    "<div class=\"x\">&nbsp;&lt;b&gt;</div>",
    "x = {'key': [1, 2.5e-10, None], \"k\\\"\": 0xFFEE}",
    "https://example.org/a/b?q=1&r=%20#frag", "user.name+tag@mail.example.com",
    "\\frac{\\alpha_{i}}{\\sqrt{2\\pi}}", "a->b && !c || d::e<T>", "if (a==b) {}  // 100% sure...", "#!/bin/sh\n\n\n$ ls -la | grep '^d'",
]

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☃", "🤖🚀", "\U0001fae8", "\U0001f9d1\u200d\U0001f4bb", "👨🏿‍🚒", "🎉🎉🎉"]

SPACES = [" ", "  ", "   ", "    ", "        ", "\t", "\n", "\r\n", "\n\n", "\n\n\n", " \n", "\n ", "\t\t", "\u00a0", "\u3000", "\u2028",
          "\u2003 ", "\u200b", "\ufeff", "\x0b", "\x0c", "\x85", "\x1c", "\u180e", " \u00a0 "]

BROKEN = [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xfe\xfe", b"\xe2\x28\xa1",
          b"\xf0\x28\x8c\xbc", b"\xc3\xc3\xa9", b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"]

MARKS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<0x0A>", "▁", "▁▁a", "Ġ", "<|im_start|>", "<|begin_of_text|>", "[MASK]", "<mask>",
         " <mask> ", "<tool>", "x<tool>y"]

NUL_SAFE = [chr(c) for c in range(1, 32)] + ["\x7f", "\x00"]


def words(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))


def numbers(rng):
    return rng.choice(["{}", "{:,}", "{:.3f}", "-{}", "${}", "{}%", "0x{:x}", "{}th", "v{}.1", "{}'s"]).format(
        rng.randint(0, 10 ** rng.randint(1, 12)))


def punctuation(rng):
    return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»„“”‘’…—–¡¿§©®™°±×÷€£¥") for _ in range(rng.randint(1, 8)))


def contraction(rng):
    return rng.choice(["can", "I", "WE", "x", "", "é", "1"]) + rng.choice("'’") + rng.choice(
        ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "LL", "ſ", "lL", "x", "'s", " s"])


def any_characters(rng):
    def one():
        top = rng.choice([0x100, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
        c = rng.randrange(top)
        return chr(c) if not 0xD800 <= c < 0xE000 else "�"
    return "".join(one() for _ in range(rng.randint(1, 10)))


def neighbours(rng):
    """Characters of one block, as a word of its language might be."""
    begin = rng.choice([0x370, 0x400, 0x530, 0x590, 0x600, 0x700, 0x900, 0xa00, 0xe00, 0x1000, 0x10a0, 0x1100, 0x1e00, 0x2000, 0x2100, 0x2200,
                        0x2460, 0x3040, 0x3130, 0x3300, 0x4e00, 0xa640, 0xac00, 0xfb00, 0xfe70, 0xff00, 0x10400, 0x10d40, 0x11f00, 0x16100,
                        0x1d400, 0x1e900, 0x1f600, 0x1fa00, 0x1ccf0, 0x20000, 0x31350])
    return "".join(chr(begin + rng.randrange(64)) for _ in range(rng.randint(1, 8)))


def marks_on_letters(rng):
    return "".join(rng.choice("aeiouAEnqd한가각") + "".join(chr(rng.choice([0x300, 0x301, 0x308, 0x30a, 0x323, 0x327, 0x345, 0x11a8, 0x653, 0x3099]))
                                                           for _ in range(rng.randint(0, 3))) for _ in range(rng.randint(1, 5)))


def short_run(rng):
    return rng.choice(["a", "ab", " ", "0", "!", "\n", "é", "中", "😀", "-", "=", "ha", "\t", "▁", "A", "'", " '"]) * rng.randint(2, 60)


def long_run(rng):
    return rng.choice(["a", "the ", " ", "0", "=", "\n", "é", "中", "😀", "xyz", "\u0301", ".", "<s>", "'"]) * rng.randint(500, 3000)


PARTS = [(words, 30), (lambda r: r.choice(CODE), 8), (lambda r: r.choice(EMOJI), 6), (lambda r: r.choice(SPACES), 14), (numbers, 8), (punctuation, 8),
         (contraction, 6), (any_characters, 5), (neighbours, 5), (marks_on_letters, 3), (short_run, 5), (lambda r: r.choice(MARKS), 3),
         (lambda r: r.choice(NUL_SAFE), 1)]
FUNCTIONS, WEIGHTS = [list(column) for column in zip(*PARTS)]


def generated_string(rng):
    if rng.random() < 0.002:
        return long_run(rng).encode()
    pieces = []
    if rng.random() < 0.15:
        pieces.append(b" " * rng.randint(1, 5))
    for function in rng.choices(FUNCTIONS, WEIGHTS, k=rng.randint(0, 7)):
        pieces.append(function(rng).encode("utf-8", "replace"))
        if rng.random() < 0.4:
            pieces.append(b" ")
    if rng.random() < 0.08:
        pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(BROKEN))
    return b"".join(pieces)


def generated_strings(count, seed):
    rng = random.Random(seed)
    return [generated_string(rng) for _ in range(count)]


def as_text(string):
    return string.decode("utf-8", "replace")
