#!/usr/bin/env python3
"""Writes tiny vocabularies trained on corpus.txt, so that every pre-tokenizer is tested without a model file.

    make_tiny.py            tiny_gpt2.txt (merges, byte-level spelling) and tiny_llama.txt (score, tab, escaped text)
    make_tiny.py --gguf DIR also DIR/tiny-<pre>.gguf and DIR/tiny-llama.gguf, for llama_ids.cc

Merges are trained on uncut text, so they cross every boundary that a pre-tokenizer should set.
"""
import collections
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
PRES = ["default", "gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm", "deepseek-coder", "falcon", "starcoder", "refact", "command-r", "mpt"]
N_MERGES = {"gpt2": 900, "llama": 500}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPECIALS = [("<|endoftext|>", CONTROL), ("<|im_start|>", NORMAL), ("<|im_end|>", NORMAL), ("<fim_prefix>", NORMAL), ("<tool_call>", USER_DEFINED),
            ("   ", USER_DEFINED), ("<unused0>", CONTROL)]


def unescaped(line: bytes) -> bytes:
    out, i = bytearray(), 0
    named = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}
    while i < len(line):
        if line[i : i + 1] != b"\\":
            out += line[i : i + 1]
            i += 1
        elif line[i + 1 : i + 2] == b"x":
            out.append(int(line[i + 2 : i + 4], 16))
            i += 4
        else:
            out += named[line[i + 1 : i + 2]]
            i += 2
    return bytes(out)


def byte_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(0x100 + i) for i, b in enumerate(shifted)}}


def trained(texts, n_merges):
    """Plain byte-pair training: the most frequent adjacent pair first, ties by first appearance."""
    merges = []
    texts = [list(t) for t in texts]
    for _ in range(n_merges):
        counts = collections.Counter()
        for t in texts:
            counts.update(zip(t, t[1:]))
        (left, right), _ = counts.most_common(1)[0]
        merges.append((left, right))
        for k, t in enumerate(texts):
            out, i = [], 0
            while i < len(t):
                joins = i + 1 < len(t) and t[i] == left and t[i + 1] == right
                out.append(left + right if joins else t[i])
                i += 2 if joins else 1
            texts[k] = out
    return merges


class Gguf:
    """The few GGUF v3 key types a vocabulary needs."""

    def __init__(self):
        self.keys = []

    @staticmethod
    def text(value):
        raw = value.encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(raw)) + raw

    def add(self, key, kind, payload):
        self.keys.append(self.text(key) + struct.pack("<I", kind) + payload)

    def string(self, key, value):
        self.add(key, 8, self.text(value))

    def u32(self, key, value):
        self.add(key, 4, struct.pack("<I", value))

    def flag(self, key, value):
        self.add(key, 7, struct.pack("<B", value))

    def array(self, key, kind, items, packed):
        self.add(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(map(packed, items)))

    def write(self, path):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(self.keys)) + b"".join(self.keys))


def write_gguf(path, model, pre, tokens, types, scores, merges):
    g = Gguf()
    g.string("general.architecture", "llama")
    g.string("general.name", path.stem)
    g.string("tokenizer.ggml.model", model)
    if pre:
        g.string("tokenizer.ggml.pre", pre)
    g.array("tokenizer.ggml.tokens", 8, tokens, g.text)
    g.array("tokenizer.ggml.token_type", 5, types, lambda v: struct.pack("<i", v))
    g.array("tokenizer.ggml.scores", 6, scores, lambda v: struct.pack("<f", v))
    if merges:
        g.array("tokenizer.ggml.merges", 8, merges, g.text)
        end = tokens.index("<|endoftext|>")
        g.u32("tokenizer.ggml.bos_token_id", end)
        g.u32("tokenizer.ggml.eos_token_id", end)
    g.write(path)


def main():
    corpus = [unescaped(line) for line in (HERE / "corpus.txt").read_bytes().split(b"\n")[:-1]]
    valid = [c.decode() for c in corpus if c.decode("utf-8", "ignore").encode() == c]
    alphabet = byte_alphabet()

    merges = trained([[alphabet[b] for b in c.encode()] for c in valid], N_MERGES["gpt2"])
    (HERE / "tiny_gpt2.txt").write_text("".join(f"{l} {r}\n" for l, r in merges), encoding="utf-8")
    gpt2_tokens = list(dict.fromkeys([alphabet[b] for b in range(256)] + [l + r for l, r in merges]))
    gpt2_types = [NORMAL] * len(gpt2_tokens) + [t for _, t in SPECIALS]
    gpt2_tokens += [s for s, _ in SPECIALS]

    # Unlike llama.cpp, we never merge text into a control token: pieces that could do it are left out.
    blanked = ["▁" + v.replace(" ", "▁") for v in valid if "<s>" not in v and "</s>" not in v]
    letters = [c for c, n in collections.Counter("".join(blanked)).most_common(200)]
    joined = [l + r for l, r in trained([list(b) for b in blanked], N_MERGES["llama"])]
    pieces = list(dict.fromkeys(joined + letters))
    escape = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    shown = ["".join(escape.get(c, c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode())) for c in p) for p in pieces]
    # Every seventh score repeats, so that ties are tested.
    scores = [float(-(i - i % 7)) for i in range(len(pieces))]
    (HERE / "tiny_llama.txt").write_text("".join(f"{s:g}\t{p}\n" for s, p in zip(scores, shown)), encoding="utf-8")

    if len(sys.argv) == 3 and sys.argv[1] == "--gguf":
        out = pathlib.Path(sys.argv[2])
        out.mkdir(parents=True, exist_ok=True)
        for pre in PRES:
            write_gguf(out / f"tiny-{pre}.gguf", "gpt2", pre, gpt2_tokens, gpt2_types, [0.0] * len(gpt2_tokens), [f"{l} {r}" for l, r in merges])
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces + [s for s, _ in SPECIALS]
        types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + [t for _, t in SPECIALS]
        write_gguf(out / "tiny-llama.gguf", "llama", None, tokens, types, [0.0] * 259 + scores + [0.0] * len(SPECIALS), None)


main()
