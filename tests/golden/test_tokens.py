"""Token ids of the real vocabularies equal llama.cpp's, string by string, through `pagoda tokenize` (tokens/check.py)."""

import pathlib
import subprocess
import sys

import pytest

TOKENS = pathlib.Path(__file__).parent / "tokens"


def check(pagoda, model, expected, every):
    command = [sys.executable, TOKENS / "check.py", pagoda.binary, model, TOKENS / expected, "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_smollm2_sample(pagoda, real_model):
    check(pagoda, real_model("smollm2"), "smollm2.ids", every=8)


@pytest.mark.full
@pytest.mark.parametrize("name", ["smollm2", "gemma3", "qwen2.5"])
def test_whole_corpus(pagoda, real_model, name):
    check(pagoda, real_model(name), f"{name}.ids", every=1)
