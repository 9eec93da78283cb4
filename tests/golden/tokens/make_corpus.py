#!/usr/bin/env python3
"""Writes corpus.txt: one test string per line, escaped (\\n \\r \\t \\\\ and \\xHH for bytes that are not valid UTF-8).

Seeded, so that it can be repeated; changing it means making every *.ids file anew (llama_ids.cc).
"""
import pathlib
import random

strings: list[bytes] = []


def add(*texts):
    for text in texts:
        strings.append(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


PROSE = {
    "en": "It's the model's job; they've said we'll see, you'd think I'm sure DON'T WE'LL they'RE",
    "de": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, Straßenbahn!",
    "fr": "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "es": "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?",
    "pl": "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "tr": "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul ıssız",
    "vi": "Tiếng Việt có rất nhiều dấu: ắ ằ ẳ ẵ ặ.",
    "ru": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "uk": "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п’яне знаємо.",
    "el": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "he": "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ar": "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ٠١٢٣٤٥",
    "fa": "می‌خواهم ۱۲۳ کتاب بخوانم",
    "hi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३",
    "bn": "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। ১২৩",
    "ta": "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்",
    "te": "తెలుగు భాష చాలా అందమైనది",
    "th": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "km": "ខ្ញុំស្រឡាញ់ភាសាខ្មែរ",
    "my": "မြန်မာဘာသာစကား",
    "ka": "ქართული ენა ძალიან ლამაზია",
    "hy": "Հայերեն լեզուն",
    "am": "አማርኛ ቋንቋ",
    "zh": "视野无限广，窗外有蓝天。第1章：２０２４年！",
    "zh-tw": "臺灣的繁體中文，「引號」與——破折號……",
    "ja": "いろはにほへと ちりぬるを。カタカナ、漢字とｶﾅ",
    "ko": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "mn": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "chr": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ꮳꮃꭹ",
    "deseret": "𐐔𐐇𐐝𐐀𐐡𐐇𐐓 𐐨𐐩𐐪",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ≤ ∑ᵢ xᵢ² ≠ ∞ 𝕳𝖊𝖑𝖑𝖔 ½ ⅷ ①②③",
}
for text in PROSE.values():
    add(text, " " + text, text + "\n", "".join(reversed(text)))
    words = text.split()
    add("  ".join(words), "\n".join(words), "".join(words))

add("", " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "a", " a", "a ", "  a", "a  ", " a ", "\ta", "a\t", "\na", "a\n")
for n in (2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100):
    for c in (" ", "\n", "\t", "\r\n", "\u00a0", "\u3000"):
        if n <= 33 or c in " \n":
            add("x" + c * n + "y")
    add(" " * n, "\n" * n, "\t" * n, "a" * n, "=" * n, "-" * n + "\n", "あ" * n, "ab" * n, "1" * n, "!" * n)
add(" \n", "\n ", " \n ", "\n \n", "  \n  \n  ", "a \n b", "a\n \nb", "\t\n\t", " \t \t ", "a \t\tb", "\v\f", "a\u2028b\u2029c")
add("\u0085x", "x\u0085 y", "\u1680\u2000\u2003\u202f\u205f\u3000z", "a\u200bb\u200dc\ufeffd", "\u180e", "\x1c\x1d\x1e\x1f", "a\x00b")

for text in ("0", "1", "12", "123", "1234", "12345", "123456", "1234567", "12345678", "3.14159", "1,234,567.89", "1e-10", "0xDEADBEEF",
             "007", " 1", " 12", "  123", "a1b2c3", "1a", "2024-02-29T12:34:56Z", "٣٤٥", "１２３４", "Ⅻ", "²³", "१२३४५६७",
             "10%", "$100", "€5", "#1", "v1.2.3-rc4", "192.168.0.1", "12 34 567", "9" * 50, "1_000_000"):
    add(text)

CODE = [
    "def f(x):\n    return x**2  # square\n\n\nclass A(B):\n\tpass\n",
    "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 42); return 0; }\n",
    "for (let i = 0; i < arr.length; i++) {\n  console.log(`${arr[i]}`);\n}\n",
    "SELECT * FROM users WHERE name = 'O''Brien' AND id >= 10;",
    "fn main() {\n    let v: Vec<u8> = vec![0; 16];\n    println!(\"{:?}\", v);\n}",
    "<html>\n  <body class=\"a b\">\n    <h1>Title</h1>\n    <p>text&nbsp;</p>\n  </body>\n</html>",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"\\u00e9\"}}",
    "x = a[::-1] if not b else {k: v for k, v in d.items()}",
    "git commit -m \"fix: don't crash\" && git push --force-with-lease",
    "https://example.com/path?q=1&r=%20#frag user@example.com",
    "C:\\Users\\name\\file.txt /usr/local/bin/../lib",
    "\\begin{equation} \\frac{a}{b} = \\sqrt{c^2} \\end{equation}",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "```python\nprint('hi')\n```\n",
    "        deeply\n                indented\n                        code\n",
    "if(a<b&&c>d||!e){x+=1;y-=2;z*=3;}//end",
    "/* comment */ // another\n#define X(y) ((y)<<2)\n",
    "camelCaseIdentifier snake_case_identifier SCREAMING_CASE kebab-case-name",
    "\n\n\n\n# Heading\n\n* item 1\n* item 2\n\n1. one\n2. two\n",
    "a;b;;c;;;d....e...f..g---h--i===j==k",
    "lambda x: x+1;\r\nline2\r\n\r\nline3",
    "print(\"\"\"doc\nstring\"\"\")",
    "$HOME ${VAR:-x} $(cmd) `cmd` <<EOF\nEOF\n",
    "α=1;β=α+2;结果=β*3",
]
add(*CODE)

add("'s", "'S", "it's", "IT'S", "'re'RE'Re", "don't", "'t 'm 'll 've 'd 'D", "''", "'", "' s", "a'", "'sx", "’s", "l'amour d'été", "o'clock 'tis",
    "'ſ", "'K", "we'ĹĹ", "x'S.", "\"quoted\" 'quoted'", "«guillemets» „Gänsefüßchen“")

EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "☃", "⌚️", "🫠", "🦾", "1️⃣", "©®™", "🚀 (normal) 😶‍🌫️ (multiple) ✅"]
for e in EMOJI:
    add(e, " " + e, e + e, "text" + e + "text", e + " \n" + e)
add("e\u0301", "e\u0301e\u0302\u0303", "a\u0300\u0301\u0302\u0303\u0304", "Z\u0351\u036b\u0343a\u0364l\u0346g\u0345o", "\u0301", " \u0301x", "कि\u093c",
    "n\u0303", "ñ", "\u1e9b\u0323", "Å\u030a", "가\u11a8", "ﬁﬂ", "ǅ", "İi̇", "\u0e33", "a\u20dd", "x\u034fy")
add("\ufffd", "a\ufffdb", "\ufdd0", "\U0010ffff", "\U000e0041", "\ue000", "\U0001e900\U0001e943", "\u0378", "\U00016d40", "\u1c89", "\ud800", "a\udfffb")

for bad in (b"\xff", b"\xfe\xff", b"a\xffb", b"\x80", b"\xbf\xbf", b"a\x80b\x81c", b"\xc3", b"\xc3(", b"caf\xe9", b"\xe2\x82", b"\xe2\x82x", b"\xe2(\xa1",
            b"\xf0\x9f\x98", b"\xf0\x9f\x98 ok", b"\xf0\x28\x8c\xbc", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80",
            b"\xfc", b"valid \xe4\xbd\xa0 then \xe4\xbd", b"\xe4\xbd\xa0\xe5\xa5\xbd\xe5", b"\xff\xff\xff\xff", b"x \xf0\x9f\x92\xa9\xf0\x9f\x92 y", b"\xc3\xa9\xc3\xa9\xc3",
            b"\xa0 \xa0", b"\n\xff\n", b"'\xe9s", b"12\xff34"):
    add(bad)

SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
           "<|start_header_id|>user<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "<unused0>", "<unused98>", "[multimodal]", "<|fim_prefix|>",
           "<|fim_suffix|>", "<|fim_middle|>", "<fim_prefix>", "<fim-prefix>", "<|repo_name|>", "<repo_name>", "<reponame>", "<file_sep>", "<|file_sep|>",
           "<tool_call>", "</tool_call>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
           "<｜fim▁begin｜>", "<|EOT|>", "<|START_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", ">>TITLE<<", ">>ABSTRACT<<", "<0x0A>", "<0xFF>",
           "[PAD151646]", "[PAD49152]", "<jupyter_code>", "<empty_output>", "<table>", "</table>", "<h1>", "<|padding|>", "<|reserved_special_token_0|>",
           "<|object_ref_start|>", "<|vision_pad|>", "<MASK_TOKEN>", "<|placeholder1|>", "▁", "▁▁a", "Ġ", "Ċ", "õ", "÷ø", "<|im_start", "im_end|>", "<|im_end|", "<<s>>"]
for s in SPECIAL:
    add(s, "a " + s + " b", s + s + "\n")
add("<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n", "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] More [/INST]",
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nHi<|eot_id|>", "<|user|>\nHi<|end|>\n<|assistant|>\n",
    "<|user|>   spaces after <|end|> \t\n x </s>  y <s>  z <unk>  w <|endoftext|>  v")

rng = random.Random(20240229)
ALPHABETS = ["abcdefghij ", "ABCxyz'sStTlL ", "0123456789 ,.", "   \t\n\r", "!?.,;:-_=+*/<>()[]{}|~^$#@&%`\"'\\", "éüñçßøåčž", "абвгдежз ", "漢字日本語中文、。", "あいうカキク",
             "가나다라 ", "अआकि्", "😀👍🏽\u200d🇩", "\u0301\u0302\u0327", "٠١٢½²Ⅷ", "∑∀€©™→", "\u00a0\u3000\u2003", "AaÀàΑαАа"]
for _ in range(160):
    text = ""
    for _ in range(rng.randint(2, 8)):
        alphabet = rng.choice(ALPHABETS)
        text += "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 6)))
    add(text)
for _ in range(40):
    add(bytes(rng.choice([rng.randrange(256), rng.randrange(128), 0x20, 0xC3, 0xE2, 0xF0, 0x9F]) for _ in range(rng.randint(1, 16))))


def escaped(raw: bytes) -> bytes:
    out = []
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
        if char in named:
            out.append(named[char])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 0x20 or code == 0x7F or code in (0x85, 0x2028, 0x2029):
            out.append("".join(f"\\x{b:02x}" for b in char.encode()))
        else:
            out.append(char)
    return "".join(out).encode()


def runs_in_llama_cpp(raw: bytes) -> bool:
    """llama.cpp ends the process on four-byte forms above U+10FFFF."""
    return not any(b >= 0xF4 and (b > 0xF4 or raw[i + 1 : i + 2] >= b"\x90") for i, b in enumerate(raw) if b < 0xF8)


unique = [s for s in dict.fromkeys(strings) if runs_in_llama_cpp(s)]
pathlib.Path(__file__).with_name("corpus.txt").write_bytes(b"".join(escaped(s) + b"\n" for s in unique))
print(len(unique), "strings")
