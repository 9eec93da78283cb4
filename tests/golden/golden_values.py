"""The committed values: what each model is called, and its prompts, top logits, losses and logits hashes."""

import functools
import json
from pathlib import Path

import tiny_models

VALUES = Path(__file__).with_name("values")
TINY = list(tiny_models.MODELS)
REAL = {  # name in models/recipes.toml: name of the values file
    "smollm2": "smollm2-135m-instruct-q4_1",
    "qwen2.5": "qwen2.5-coder-0.5b-instruct-q4_k_m",
    "gemma3": "gemma-3-270m-q4_k_m",
}
ARITHMETICS = ("f32", "int8")
KV_FORMATS = ("bf16", "auto")  # auto: q8, K of layers with a K bias in bf16
ISAS = ("ref", "avx2", "avx512")


@functools.cache
def values_of(model):
    return json.loads((VALUES / f"{REAL.get(model, model)}.json").read_text())


def text_ids(model):
    return tuple(values_of(model)["text"]["ids"])


def prompt_ids(model, name):
    return next(tuple(p["ids"]) for p in values_of(model)["prompts"] if p["name"] == name)


def numerics_options(arithmetic, kv_format):
    return ("--arithmetic", arithmetic, "--kv-format", kv_format)


def committed_hashes():
    """{model: {"arithmetic/kv format": logits hash of the model's text}}"""
    return json.loads((VALUES / "hashes.json").read_text())
