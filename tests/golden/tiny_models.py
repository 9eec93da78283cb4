#!/usr/bin/env python3
"""Makes the small GGUF models that the tests run on: every family, every weight type, awkward shapes.

    tiny_models.py FOLDER [NAME ...]     writes NAME.gguf (default: all), each checked against tiny_models.json
    tiny_models.py FOLDER --update       the same, and rewrites tiny_models.json

Contract: the same bytes on every machine and Python (tiny_gguf.py says how; no float is ever computed). A file that has
the right SHA-256 is left alone, a new one appears by rename. Standard library only; the whole set takes about a second.

The weights are random, scaled so that activations stay of order one and logits spread over a few units. They have no
meaning; what they test is arithmetic. Some scales are f16 subnormals on purpose (as in real Q6_K files).
"""

import hashlib
import json
import os
import struct
import sys
from pathlib import Path

from tiny_gguf import ALL_TYPES, F32, bias, gguf_file, matrix, norm

LISTING = Path(__file__).with_name("tiny_models.json")

# ---- vocabularies --------------------------------------------------------------------------------------------------
# Merges in rank order, each of which makes one token; _ stands for the family's word mark.
MERGES = """_ t|h e|_ a|i n|r e|_t he|o n|e r|_ s|n d|_ w|a t|_ c|o u|e n|_ o|i s|i t|o r|_a nd|e s|_ b|_ f|in g|_t o|_ p|
_ m|a l|_o f|e d|_ h|a n|a r|_ d|_ in|l e|_ l|i c|_ n|_i s|s t|o m|_ g|v e|r o|_ re|_y ou|l l|_th at|i on|_w h|_f or|c h|
a s|_b e|_ on|o t|_ T|_ I|u t|h ing|e l|_s t|en t|_h a|_ e|_it|_w as|u r|l y|_a n|s e|k e|_c on|_ he|t h|_w ith|a y|i l"""


def merge_list(count, mark):
    made, pairs = set(), []
    for text in MERGES.replace("\n", "").split("|"):
        pair = tuple(part.replace("_", mark) for part in text.split(" "))
        known = len(pair) == 2 and all(len(part) == 1 or part in made for part in pair)
        if known and "".join(pair) not in made and len(pairs) < count:
            made.add("".join(pair))
            pairs.append(pair)
    assert len(pairs) == count, f"only {len(pairs)} usable merges"
    return pairs


def byte_letters():
    """GPT-2's printable stand-in for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in plain + others]


CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' "
    "else message['role']) + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def bpe_vocab(size, pre, specials_first, add_bos):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pairs = merge_list(size - 256 - len(specials), "\u0120")
    words = byte_letters() + ["".join(pair) for pair in pairs]
    tokens = specials + words if specials_first else words + specials
    ids = {token: i for i, token in enumerate(tokens)}
    return len(tokens), [
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", pre),
        ("tokenizer.ggml.tokens", tokens),
        ("tokenizer.ggml.token_type", [CONTROL if token in specials else NORMAL for token in tokens]),
        ("tokenizer.ggml.merges", [" ".join(pair) for pair in pairs]),
        ("tokenizer.ggml.bos_token_id", ids["<|endoftext|>"]),
        ("tokenizer.ggml.eos_token_id", ids["<|im_end|>"]),
        ("tokenizer.ggml.padding_token_id", ids["<|endoftext|>"]),
        ("tokenizer.ggml.add_bos_token", add_bos),
        ("tokenizer.chat_template", CHATML),
    ]


def spm_vocab(n_merges):
    """SentencePiece style: special tokens, <0x00>..<0xFF>, merged pieces by falling score, then single letters."""
    mark = "\u2581"
    pieces = [
        ("<pad>", CONTROL),
        ("<eos>", CONTROL),
        ("<bos>", CONTROL),
        ("<unk>", UNKNOWN),
        ("<start_of_turn>", CONTROL),
        ("<end_of_turn>", CONTROL),
        ("\n", USER_DEFINED),
    ]
    pieces += [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    merged = ["".join(pair) for pair in merge_list(n_merges, mark)]
    letters = [mark] + [chr(c) for c in range(33, 127)] + list("éüñßжш中文")
    words = [(word, NORMAL) for word in merged + letters]
    tokens = [text for text, _ in pieces + words]
    scores = [0] * len(pieces) + [-i for i in range(len(words))]
    return len(tokens), [
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "default"),
        ("tokenizer.ggml.tokens", tokens),
        ("tokenizer.ggml.scores", [F32(score) for score in scores]),
        ("tokenizer.ggml.token_type", [kind for _, kind in pieces + words]),
        ("tokenizer.ggml.bos_token_id", 2),
        ("tokenizer.ggml.eos_token_id", 1),
        ("tokenizer.ggml.eot_token_id", 5),
        ("tokenizer.ggml.unknown_token_id", 3),
        ("tokenizer.ggml.padding_token_id", 0),
        ("tokenizer.ggml.add_bos_token", True),
        ("tokenizer.ggml.add_eos_token", False),
        ("tokenizer.ggml.add_space_prefix", False),
        ("tokenizer.chat_template", GEMMA_CHAT),
    ]


# ---- models --------------------------------------------------------------------------------------------------------
# types: (token_embd, output or None when tied, then q, k, v, o, gate, up, down), or "all" for every type in turn.
# Llama 3's divisors for rope base 500,000, head_dim 64, factor 8, low 1, high 4, original context 512, as f32 bits.
LLAMA3_FACTORS = [0x3F800000] * 8 + [0x3FB00966, 0x40161355, 0x408D039F] + [0x41000000] * 21

BASE = dict(
    arch="llama",
    layers=4,
    embed=256,
    heads=4,
    kv_heads=2,
    head_dim=64,
    ffn=512,
    context=1024,
    rope_base=10000,
    eps=(1, 100000),
    vocab=("bpe", 333, "smollm", True, False),
    extra=[],
)
MODELS = {
    "tiny-llama": dict(context=2048, types="Q8_0 Q6_K Q4_K Q4_K Q6_K Q4_K Q4_K Q4_K Q6_K"),
    "tiny-llama-mha": dict(
        layers=3,
        embed=192,
        heads=4,
        kv_heads=4,
        head_dim=48,
        ffn=416,
        vocab=("bpe", 300, "gpt-2", True, False),
        types="Q8_0 - Q4_1 Q4_1 Q5_1 Q4_1 Q5_1 Q5_1 Q4_1",
    ),
    "tiny-llama-mqa": dict(
        layers=3,
        embed=128,
        heads=4,
        kv_heads=1,
        head_dim=32,
        ffn=352,
        vocab=("bpe", 317, "smollm", True, False),
        types="Q5_0 - Q4_0 Q5_0 Q8_0 Q4_0 Q4_0 Q4_0 Q5_0",
    ),
    "tiny-llama-rope-llama3": dict(
        layers=3,
        context=4096,
        rope_base=500000,
        rope_factors=True,
        vocab=("bpe", 333, "llama-bpe", False, True),
        types="Q3_K Q6_K Q3_K Q3_K Q5_K Q3_K Q3_K Q2_K Q4_K",
    ),
    "tiny-llama-rope-linear": dict(
        layers=3,
        embed=128,
        heads=4,
        head_dim=32,
        ffn=256,
        vocab=("bpe", 301, "default", True, False),
        extra=[("rope.scaling.type", "linear"), ("rope.scaling.factor", F32(4))],
        types="F16 IQ4_NL F16 IQ4_NL F16 IQ4_NL IQ4_NL IQ4_NL IQ4_NL",
    ),
    "tiny-llama-rope-yarn": dict(
        layers=3,
        context=512,
        extra=[
            ("rope.scaling.type", "yarn"),
            ("rope.scaling.factor", F32(4)),
            ("rope.scaling.original_context_length", 128),
        ],
        types="BF16 IQ4_XS BF16 IQ4_XS BF16 IQ4_XS IQ4_XS IQ4_XS IQ4_XS",
    ),
    "tiny-qwen2": dict(
        arch="qwen2",
        embed=320,
        heads=5,
        kv_heads=1,
        ffn=672,
        rope_base=1000000,
        eps=(1, 1000000),
        k_bias=(3, 6),
        vocab=("bpe", 333, "qwen2", False, False),
        types="Q5_0 Q8_0 Q5_0 Q5_0 Q8_0 Q5_0 Q5_0 Q5_0 Q5_1",
    ),
    "tiny-qwen3": dict(
        arch="qwen3",
        layers=3,
        head_dim=128,
        ffn=768,
        rope_base=1000000,
        eps=(1, 1000000),
        head_norms=True,
        vocab=("bpe", 300, "qwen2", False, False),
        types="Q6_K - Q4_K Q4_K Q6_K Q4_K Q4_K Q5_K Q6_K",
    ),
    "tiny-gemma3": dict(
        arch="gemma3",
        layers=7,
        embed=288,
        heads=2,
        kv_heads=1,
        head_dim=256,
        ffn=768,
        context=2048,
        rope_base=1000000,
        eps=(1, 1000000),
        head_norms=True,
        sandwich=True,
        vocab=("spm", 64),
        extra=[("attention.sliding_window", 64)],
        types="Q8_0 - Q5_0 Q5_0 Q8_0 Q4_K Q5_0 Q5_0 Q6_K",
    ),
    "tiny-types": dict(layers=5, kv_heads=4, vocab=("bpe", 301, "smollm", True, False), types="all"),
}


def shape_of(name):
    return BASE | MODELS[name]


def types_of(m):
    """(token_embd type, output type or None, matmul types of each layer)."""
    if m["types"] == "all":
        return (
            "Q3_K",
            "F16",
            [[ALL_TYPES[(7 * layer + i) % len(ALL_TYPES)] for i in range(7)] for layer in range(m["layers"])],
        )
    embed, output, *rest = m["types"].split()
    return embed, None if output == "-" else output, [rest] * m["layers"]


def vocab_size(name):
    kind, *arguments = shape_of(name)["vocab"]
    return (bpe_vocab(*arguments) if kind == "bpe" else spm_vocab(*arguments))[0]


def metadata_of(name, m, vocab_metadata, n_vocab):
    arch = m["arch"]
    per_arch = [
        ("block_count", m["layers"]),
        ("context_length", m["context"]),
        ("embedding_length", m["embed"]),
        ("feed_forward_length", m["ffn"]),
        ("attention.head_count", m["heads"]),
        ("attention.head_count_kv", m["kv_heads"]),
        ("attention.layer_norm_rms_epsilon", F32(*m["eps"])),
        ("rope.freq_base", F32(m["rope_base"])),
    ]
    if m["head_dim"] * m["heads"] != m["embed"]:
        per_arch += [("attention.key_length", m["head_dim"]), ("attention.value_length", m["head_dim"])]
    if arch == "llama":
        per_arch += [("rope.dimension_count", m["head_dim"]), ("vocab_size", n_vocab)]
    return [
        ("general.architecture", arch),
        ("general.type", "model"),
        ("general.name", name),
        *((f"{arch}.{key}", value) for key, value in per_arch + m["extra"]),
        ("general.quantization_version", 2),
        *vocab_metadata,
    ]


def layer_tensors(name, m, layer, types):
    embed, ffn, q_rows, kv_rows = m["embed"], m["ffn"], m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    # Gains: scores spread by about 1; down and output make up for the gated product and the averaging in attention.
    gain_q = (1, 2) if "k_bias" in m else (1, 1)
    parts = [
        ("attn_q", q_rows, embed, gain_q),
        ("attn_k", kv_rows, embed, (1, 1)),
        ("attn_v", kv_rows, embed, (1, 1)),
        ("attn_output", embed, q_rows, (2, 1)),
        ("ffn_gate", ffn, embed, (3, 2)),
        ("ffn_up", ffn, embed, (1, 1)),
        ("ffn_down", embed, ffn, (2, 1)),
    ]
    vectors = [("attn_norm", embed, 0), ("ffn_norm", embed, 0)]
    if m.get("head_norms"):
        vectors += [("attn_q_norm", m["head_dim"], 0), ("attn_k_norm", m["head_dim"], 1)]
    if m.get("sandwich"):
        vectors += [("post_attention_norm", embed, 6), ("post_ffw_norm", embed, 6)]
    out = []
    for part, n, half_octaves in vectors:
        full = f"blk.{layer}.{part}.weight"
        out.append((full, (n,), "F32", norm(f"{name}/{full}", n, half_octaves)))
    for (part, rows, cols, gain), kind in zip(parts, types):
        full = f"blk.{layer}.{part}.weight"
        out.append((full, (cols, rows), kind, matrix(f"{name}/{full}", rows, cols, kind, gain)))
    if "k_bias" in m:
        for part, rows, spread in (
            ("attn_q", q_rows, (1, 1)),
            ("attn_k", kv_rows, m["k_bias"]),
            ("attn_v", kv_rows, (1, 1)),
        ):
            full = f"blk.{layer}.{part}.bias"
            out.append((full, (rows,), "F32", bias(f"{name}/{full}", rows, *spread)))
    return out


def build(name):
    m = shape_of(name)
    kind, *arguments = m["vocab"]
    n_vocab, vocab_metadata = bpe_vocab(*arguments) if kind == "bpe" else spm_vocab(*arguments)
    embed_type, output_type, layer_types = types_of(m)
    embed = m["embed"]
    # A tied model's embedding is small beside what the layers add, or every token would predict itself.
    gain = (16, 1) if output_type else (2, 1)
    tensors = [
        (
            "token_embd.weight",
            (embed, n_vocab),
            embed_type,
            matrix(f"{name}/token_embd.weight", n_vocab, embed, embed_type, gain),
        ),
        ("output_norm.weight", (embed,), "F32", norm(f"{name}/output_norm.weight", embed, 0)),
    ]
    if output_type:
        tensors.append(
            (
                "output.weight",
                (embed, n_vocab),
                output_type,
                matrix(f"{name}/output.weight", n_vocab, embed, output_type, (5, 2)),
            )
        )
    if m.get("rope_factors"):
        tensors.append(("rope_freqs.weight", (m["head_dim"] // 2,), "F32", struct.pack("<32I", *LLAMA3_FACTORS)))
    for layer, types in enumerate(layer_types):
        tensors += layer_tensors(name, m, layer, types)
    return gguf_file(metadata_of(name, m, vocab_metadata, n_vocab), tensors)


# ---- files ---------------------------------------------------------------------------------------------------------


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_model(folder, name, expected):
    """Path of NAME.gguf in folder, made if needed; returns (path, sha256). Raises ValueError where the hash differs."""
    path = folder / f"{name}.gguf"
    if expected and path.exists() and sha256_of(path) == expected:
        return path, expected
    data = build(name)
    digest = hashlib.sha256(data).hexdigest()
    if expected and digest != expected:
        raise ValueError(f"{name}: generated SHA-256 {digest}, tiny_models.json says {expected}")
    partial = folder / f".{name}.{os.getpid()}.part"
    partial.write_bytes(data)
    os.replace(partial, path)
    return path, digest


def generate(folder, names=None):
    """Makes the named models (default all) in folder, checked against the listing; returns {name: path}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    listing = json.loads(LISTING.read_text())
    return {name: write_model(folder, name, listing[name]["sha256"])[0] for name in names or MODELS}


def update(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    listing = {}
    for name in MODELS:
        path, digest = write_model(folder, name, None)
        listing[name] = {"sha256": digest, "bytes": path.stat().st_size}
    LISTING.write_text(json.dumps(listing, indent=1) + "\n")


def main(arguments):
    names = [a for a in arguments if not a.startswith("-")]
    unknown = [name for name in names[1:] if name not in MODELS]
    if not names or unknown:
        print(f"unknown model {unknown[0]}" if unknown else __doc__, file=sys.stderr)
        return 2
    if "--update" in arguments:
        update(names[0])
    for name, path in generate(names[0], names[1:]).items():
        print(f"{sha256_of(path)}  {path.stat().st_size:9d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
