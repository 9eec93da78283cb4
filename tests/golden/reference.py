#!/usr/bin/env python3
"""The independent reference: the four model families in numpy, over weights dequantized by the `gguf` package.

    reference.py logits MODEL --ids FILE|LIST [--top 20]     top logits after the last token
    reference.py nll    MODEL --ids FILE|LIST                mean natural-log loss of tokens 2..n
    reference.py greedy MODEL --ids FILE|LIST [-n 32]        greedy continuation (recomputes everything each step)
    reference.py make [--tiny FOLDER] [--real FOLDER] [NAME]   fills in values/NAME.json (default: all models)

Run by hand after `pip install numpy gguf`; the tests only read the values it wrote. Weights are float32 as the gguf
package dequantizes them; all arithmetic on them is float64, so the values stand for exact float32 inference.
Sources: Llama (Touvron et al. 2023), RoPE (Su et al. 2021), YaRN (Peng et al. 2023), Qwen2, Qwen3 and Gemma 3 reports;
GGUF's conventions (row order of llama's Q and K, Gemma's norms stored with their 1 added) as llama.cpp defines them.

--kv-format bf16|q8 and --activations int8 imitate what an engine rounds, to see how far that alone moves the results.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
from golden_inputs import write_values
from gguf import GGUFReader, dequantize
from gguf.quants import quantize
from gguf.constants import GGMLQuantizationType as Type

HERE = Path(__file__).parent
HEAD_ROWS = 8192  # rows of the output matrix that are dequantized at a time


class Model:
    """A GGUF file's metadata and tensors; weight(name) is float64, made at each call."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields, self.tensors = reader.fields, {t.name: t for t in reader.tensors}
        self.arch = self.fields["general.architecture"].contents()
        self.layers, self.embed = self.get("block_count"), self.get("embedding_length")
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        self.head_dim = self.get("attention.key_length", self.embed // self.heads)
        self.eps = self.get("attention.layer_norm_rms_epsilon")
        self.window = self.get("attention.sliding_window", 0) if self.arch == "gemma3" else 0
        self.softcap = self.get("final_logit_softcapping", 0.0)
        self.scale = 1 / math.sqrt(self.head_dim)
        if self.arch == "gemma3" and self.layers == 62:
            self.scale = 1 / math.sqrt(self.embed / self.heads)

    def get(self, key, default=None):
        field = self.fields.get(f"{self.arch}.{key}")
        if field is None and default is None:
            raise KeyError(f"{self.arch}.{key}")
        return default if field is None else field.contents()

    def weight(self, name, rows=slice(None)):
        tensor = self.tensors[name]
        data = tensor.data[rows] if tensor.data.ndim > 1 else tensor.data
        return dequantize(data, tensor.tensor_type).astype(np.float64)

    def rope_frequencies(self, local):
        """(radians per position of each pair, factor on cos and sin)."""
        dims = self.get("rope.dimension_count", self.head_dim)
        base = self.get("rope.freq_base", 10000.0)
        if local:
            return self.get("rope.freq_base_swa", 10000.0) ** (-np.arange(0, dims, 2) / dims), 1.0
        extrapolated = base ** (-np.arange(0, dims, 2) / dims)
        if "rope_freqs.weight" in self.tensors:
            extrapolated = extrapolated / self.weight("rope_freqs.weight")
        factor = self.get("rope.scaling.factor", 0.0) or 1.0
        kind = self.get("rope.scaling.type", "linear")
        if kind == "none":
            return extrapolated, 1.0
        if kind != "yarn":
            return extrapolated / factor, 1.0
        original = self.get("rope.scaling.original_context_length", self.get("context_length"))

        def dimension_turning(turns):  # the dimension that makes so many turns over the original context
            return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(dimension_turning(self.get("rope.scaling.yarn_beta_fast", 32.0))))
        high = min(dims - 1, math.ceil(dimension_turning(self.get("rope.scaling.yarn_beta_slow", 1.0))))
        kept = 1 - np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0, 1)
        magnitude = (1 + 0.1 * math.log(factor)) * self.get("rope.scaling.attn_factor", 1.0)
        return extrapolated / factor * (1 - kept) + extrapolated * kept, magnitude


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, positions, frequencies, magnitude, halves):
    """x [tokens, heads, head_dim]; pairs are (i, i + dims / 2) if halves, else (2i, 2i + 1)."""
    angles = positions[:, None] * frequencies[None, :]
    cos, sin = (np.cos(angles) * magnitude)[:, None, :], (np.sin(angles) * magnitude)[:, None, :]
    dims = 2 * len(frequencies)
    first, second = (slice(0, dims // 2), slice(dims // 2, dims)) if halves else (slice(0, dims, 2), slice(1, dims, 2))
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def kv_rounded(x, kv_format):
    """x [tokens, heads, head_dim] as a cache of that format gives it back."""
    if kv_format == "f32":
        return x
    x = x.astype(np.float32)
    if kv_format == "bf16":
        return dequantize(quantize(x, Type.BF16), Type.BF16).astype(np.float64)
    scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    steps = np.clip(np.rint(x / np.where(scale == 0, 1, scale)), -127, 127)
    return (steps * scale).astype(np.float64)


def softmax(scores):
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


class Forward:
    """One pass over ids. kv_format: f32 | bf16 | q8, one per (K, V); activations: f32 | int8."""

    def __init__(self, model, kv_format="f32", activations="f32"):
        self.m, self.activations = model, activations
        # K of layers with a K bias stays in bf16 when the format is q8.
        self.v_format = kv_format
        self.k_format = "bf16" if kv_format == "q8" and "blk.0.attn_k.bias" in model.tensors else kv_format

    def project(self, x, name):
        kind = self.m.tensors[f"{name}.weight"].tensor_type
        if self.activations == "int8" and kind not in (Type.F32, Type.F16, Type.BF16):
            x = self.int8_rounded(x)
        y = x @ self.m.weight(f"{name}.weight").T
        return y + self.m.weight(f"{name}.bias") if f"{name}.bias" in self.m.tensors else y

    @staticmethod
    def int8_rounded(x):
        blocks = x.reshape(*x.shape[:-1], -1, 32)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        return (np.rint(blocks / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)

    def attention(self, x, layer):
        m, prefix = self.m, f"blk.{layer}."
        n = len(x)
        q = self.project(x, prefix + "attn_q").reshape(n, m.heads, m.head_dim)
        k = self.project(x, prefix + "attn_k").reshape(n, m.kv_heads, m.head_dim)
        v = self.project(x, prefix + "attn_v").reshape(n, m.kv_heads, m.head_dim)
        if m.arch in ("qwen3", "gemma3"):
            q = rms_norm(q, m.weight(prefix + "attn_q_norm.weight"), m.eps)
            k = rms_norm(k, m.weight(prefix + "attn_k_norm.weight"), m.eps)
        local = m.window > 0 and layer % 6 != 5
        positions = np.arange(n)
        rope = (positions, *m.rope_frequencies(local), m.arch != "llama")
        q, k = rotate(q, *rope), kv_rounded(rotate(k, *rope), self.k_format)
        v = kv_rounded(v, self.v_format)
        distance = positions[:, None] - positions[None, :]
        hidden = (distance < 0) | (distance >= m.window) if local else distance < 0
        out = np.empty((n, m.heads, m.head_dim))
        for head in range(m.heads):
            kv_head = head // (m.heads // m.kv_heads)
            scores = np.where(hidden, -np.inf, q[:, head] @ k[:, kv_head].T * m.scale)
            out[:, head] = softmax(scores) @ v[:, kv_head]
        return self.project(out.reshape(n, -1), prefix + "attn_output")

    def mlp(self, x, layer):
        prefix = f"blk.{layer}."
        gate, up = self.project(x, prefix + "ffn_gate"), self.project(x, prefix + "ffn_up")
        if self.m.arch == "gemma3":
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.project(gate * up, prefix + "ffn_down")

    def hidden(self, ids):
        """Final normed state of every position."""
        m = self.m

        def norm(x, name):
            return rms_norm(x, m.weight(name + ".weight"), m.eps)

        x = m.weight("token_embd.weight", np.asarray(ids))
        sandwich = m.arch == "gemma3"
        if sandwich:
            x = x * math.sqrt(m.embed)
        for layer in range(m.layers):
            prefix = f"blk.{layer}."
            y = self.attention(norm(x, prefix + "attn_norm"), layer)
            x = x + (norm(y, prefix + "post_attention_norm") if sandwich else y)
            y = self.mlp(norm(x, prefix + "ffn_norm"), layer)
            x = x + (norm(y, prefix + "post_ffw_norm") if sandwich else y)
        return norm(x, "output_norm")

    def head_parts(self, x):
        """(first token id, logits of the next HEAD_ROWS ids) for the states x, over the whole vocabulary."""
        name = "output.weight" if "output.weight" in self.m.tensors else "token_embd.weight"
        if self.activations == "int8" and self.m.tensors[name].tensor_type not in (Type.F32, Type.F16, Type.BF16):
            x = self.int8_rounded(x)
        for first in range(0, len(self.m.tensors[name].data), HEAD_ROWS):
            part = x @ self.m.weight(name, slice(first, first + HEAD_ROWS)).T
            yield first, np.tanh(part / self.m.softcap) * self.m.softcap if self.m.softcap else part

    def last_logits(self, ids):
        return np.concatenate([part[0] for _, part in self.head_parts(self.hidden(ids)[-1:])])

    def nll(self, ids):
        states, targets = self.hidden(ids)[:-1], np.asarray(ids[1:])
        top, total, target_logit = np.full(len(targets), -np.inf), np.zeros(len(targets)), np.zeros(len(targets))
        for first, part in self.head_parts(states):
            new_top = np.maximum(top, part.max(-1))
            total = total * np.exp(top - new_top) + np.exp(part - new_top[:, None]).sum(-1)
            top = new_top
            rows = np.nonzero((targets >= first) & (targets < first + part.shape[1]))[0]
            target_logit[rows] = part[rows, targets[rows] - first]
        return float((top + np.log(total) - target_logit).mean())


def parse_ids(text):
    source = Path(text).read_text() if Path(text).exists() else text
    return [int(word) for word in re.findall(r"\d+", source)]


def top_of(logits, count):
    order = np.lexsort((np.arange(len(logits)), -logits))[:count]
    return [[int(i), round(float(logits[i]), 6)] for i in order]


def last_position(forward, ids, count=20):
    logits = forward.last_logits(ids)
    return {"top": top_of(logits, count), "range": round(float(logits.max() - logits.min()), 6)}


def make(name, path, kv_format):
    """Fills in values/NAME.json: for each prompt the top logits and the range, for the text the mean loss."""
    forward = Forward(Model(path), kv_format)
    values = json.loads((HERE / "values" / f"{name}.json").read_text())
    values["kv_format"] = kv_format
    values["prompts"] = [
        {"name": p["name"], "ids": p["ids"], **last_position(forward, p["ids"])} for p in values["prompts"]
    ]
    values["text"]["nll"] = round(forward.nll(values["text"]["ids"]), 8)
    write_values(name, values)
    print(f"{name}: nll {values['text']['nll']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["logits", "nll", "greedy", "make"])
    parser.add_argument("model", nargs="*")
    parser.add_argument("--ids")
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--kv-format", default="f32", choices=["f32", "bf16", "q8"])
    parser.add_argument("--activations", default="f32", choices=["f32", "int8"])
    parser.add_argument("--tiny", type=Path)
    parser.add_argument("--real", type=Path)
    args = parser.parse_intermixed_args()
    if args.command == "make":
        # Random weights magnify the rounding of a bf16 cache, so the generated models' values include it.
        for folder, kv_format in ((args.tiny, "bf16"), (args.real, "f32")):
            for path in sorted(folder.glob("*.gguf")) if folder else []:
                if not args.model or path.stem in args.model:
                    make(path.stem, path, kv_format)
        return 0
    forward, ids = Forward(Model(args.model[0]), args.kv_format, args.activations), parse_ids(args.ids)
    if args.command == "logits":
        print(json.dumps(last_position(forward, ids, args.top)))
    elif args.command == "nll":
        print(json.dumps({"tokens": len(ids), "nll": forward.nll(ids)}))
    else:
        start = len(ids)
        for _ in range(args.n):
            ids.append(int(forward.last_logits(ids).argmax()))
        print(json.dumps(ids[start:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
