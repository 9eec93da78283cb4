"""Places: no tracked file names a machine's own paths or a package registry's host, and only src/cmd reads the environment."""

import pathlib
import re

from checks import tree

MACHINE_PATH = re.compile(r"(?<![\w.~$}>/-])/(?:home|root|work|tmp|farm)/[\w.]")
REGISTRY = re.compile(r"(?:\bpypi\.(?:org|python)|pythonhosted\.|\bcrates\.io/|index\.crates\.io|deb\.debian\.org|registry\.npmjs|proxy\.golang)")
CARGO_SOURCE = '"registry+https://github.com/rust-lang/crates.io-index"'  # what every Cargo.lock says
ENVIRONMENT = re.compile(r"\b(?:getenv|secure_getenv|setenv|putenv|environ)\b")
SKIP = (".png", ".svg", ".gguf", ".bin", ".gz", ".npz")


def check_text(path, text):
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line):
            problems.append(f"{path}:{number}: a path of one machine: {line.strip()[:80]}")
        if REGISTRY.search(line.replace(CARGO_SOURCE, "")):
            problems.append(f"{path}:{number}: a package registry's host: {line.strip()[:80]}")
        if path.startswith("src/") and not path.startswith("src/cmd/") and ENVIRONMENT.search(line.partition("//")[0]):
            problems.append(f"{path}:{number}: only src/cmd reads the environment")
    return problems


def check(root):
    return [p for path in tree.tracked(root) if not path.endswith(SKIP) and not path.startswith("tests/fuzz_corpus/")
            for p in check_text(path, tree.read(pathlib.Path(root) / path))]
