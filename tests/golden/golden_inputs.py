#!/usr/bin/env python3
"""Writes the inputs of values/NAME.json: the token ids whose logits and loss reference.py then fills in.

    golden_inputs.py tiny                             random ids for the generated models
    golden_inputs.py real LLAMA_TOKENIZE MODEL.gguf   ids of text/*.txt, by llama.cpp's tokenizer

Run by hand. A prompt is taken as it is, so where a model wants a BOS token the ids have it.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import tiny_models

HERE = Path(__file__).parent
TEXT_TOKENS = 512
TINY_LENGTHS = {"five": 5, "medium": 48, "long": 200}
# Past the window, past the trained context, past the context before scaling.
EXTRA_LENGTHS = {
    "tiny-gemma3": {"past_window": 400},
    "tiny-llama-rope-yarn": {"past_original": 400},
    "tiny-llama-rope-llama3": {"past_original": 640},
}
TINY_TEXT_TOKENS = 280  # more than a span of 8 blocks
CHAT = {
    "smollm2-135m-instruct-q4_1": "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "qwen2.5-coder-0.5b-instruct-q4_k_m": "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "gemma-3-270m-q4_k_m": "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
}


def random_ids(key, count, n_vocab):
    raw = hashlib.shake_128(key.encode()).digest(4 * count)
    return [int.from_bytes(raw[4 * i : 4 * i + 4], "little") % n_vocab for i in range(count)]


def write_values(name, values):
    """values/NAME.json, with one prompt a line."""
    prompts = ",\n".join("  " + json.dumps(prompt) for prompt in values["prompts"])
    rest = "".join(f',\n "{key}": {json.dumps(value)}' for key, value in values.items() if key != "prompts")
    (HERE / "values").mkdir(exist_ok=True)
    (HERE / "values" / f"{name}.json").write_text(f'{{\n "prompts": [\n{prompts}\n ]{rest}\n}}\n')


def write_inputs(name, prompts, text_name, text_ids):
    prompts = [{"name": label, "ids": ids} for label, ids in prompts]
    write_values(name, {"prompts": prompts, "text": {"name": text_name, "ids": text_ids}})


def tiny():
    for name in tiny_models.MODELS:
        n_vocab = tiny_models.vocab_size(name)
        lengths = TINY_LENGTHS | EXTRA_LENGTHS.get(name, {})
        prompts = [(label, random_ids(f"{name}/{label}", count, n_vocab)) for label, count in lengths.items()]
        write_inputs(name, prompts, "random", random_ids(f"{name}/text", TINY_TEXT_TOKENS, n_vocab))


def real(tokenize, model):
    name = Path(model).stem

    def ids_of(text):
        command = [tokenize, "-m", model, "--ids", "--stdin", "--log-disable"]
        out = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
        return json.loads(out.decode().strip().splitlines()[-1])

    texts = {path.stem: path.read_text() for path in (HERE / "text").glob("*.txt")}
    prompts = [(label, ids_of(texts[label])) for label in ("short", "code", "languages", "beagle")]
    prompts.append(("chat", ids_of(CHAT[name].format(texts["question"]))))
    text_ids = ids_of(texts["alice"])
    if len(text_ids) < TEXT_TOKENS:
        raise SystemExit(f"{name}: the text has only {len(text_ids)} tokens")
    write_inputs(name, prompts, "alice", text_ids[:TEXT_TOKENS])
    print(name, {label: len(ids) for label, ids in prompts}, len(text_ids))


if __name__ == "__main__":
    tiny() if sys.argv[1] == "tiny" else real(*sys.argv[2:])
