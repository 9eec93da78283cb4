"""One clang-tidy run per file of src/ gives three checks: names, headers that compile alone, and function lengths.

Results are kept in build/lint by the hash of everything the file reads from the project, so a second run only parses what changed.
A header that is meant to be included inside something (a kernel's ISA region) says "Not self-contained" in its first lines; its names
are then checked through the files that include it.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from checks import tree

CLANG_TIDY = "clang-tidy-19"
FLAGS = ["-x", "c++", "-std=c++20", "-Wno-everything", "-DPAGODA_SOURCE_DIR=\"\""]
FINDING = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<level>error|warning|note): (?P<text>.*?)(?: \[(?P<check>[\w.,-]+)\])?$", re.M)
LINES = re.compile(r"(\d+) lines including whitespace")


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    kind: str  # naming, compile, length
    file: str
    line: int
    text: str


def is_fragment(text):
    return any("Not self-contained" in line for line in text.splitlines()[:12])


def parse(output, root):
    findings, long_function = [], None
    for match in FINDING.finditer(output):
        path = os.path.relpath(os.path.join(root, match["file"]), root)
        check, text, line = match["check"] or "", match["text"], int(match["line"])
        if check.startswith("readability-identifier-naming"):
            findings.append(Finding("naming", path, line, text))
        elif check.startswith("readability-function-size"):
            long_function = (path, line, text.split("'")[1])
        elif long_function and (count := LINES.match(text)):
            findings.append(Finding("length", long_function[0], long_function[1], f"{long_function[2]} {count[1]}"))
            long_function = None
        elif match["level"] == "error" and not path.startswith(".."):
            findings.append(Finding("compile", path, line, text))
        elif match["level"] == "error":
            findings.append(Finding("compile", path, line, f"{text} (reached from a file of this project)"))
    return findings


def stubs(cache):
    """Generated headers, as far as names and types go."""
    folder = cache / "include"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_recipes.h").write_text("#pragma once\n#include <string_view>\nnamespace pagoda::cmd {\n"
                                            "inline constexpr std::string_view kModelRecipes = \"\";\n}  // namespace pagoda::cmd\n")
    return folder


class Runner:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.cache = self.root / "build" / "lint"
        self.includes = ["-I" + str(self.root / "src"), "-I" + str(self.root / "rust/textshim"), "-I" + str(stubs(self.cache))]
        version = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
        self.salt = version + (self.root / ".clang-tidy").read_text() + pathlib.Path(__file__).read_text()

    def key(self, path):
        digest = hashlib.sha256(self.salt.encode())
        for name in [path] + sorted("src/" + n for n in tree.closure(self.root, path.removeprefix("src/"))):
            digest.update(f"{name}\0{tree.read(self.root / name)}\0".encode())
        if (shim := self.root / "rust/textshim/textshim.h").is_file():
            digest.update(tree.read(shim).encode())
        return digest.hexdigest()

    def fragments_of(self, path):
        return [n for n in tree.closure(self.root, path.removeprefix("src/")) if is_fragment(tree.read(self.root / "src" / n))]

    def run(self, path):
        kept = self.cache / f"{self.key(path)}.json"
        if kept.is_file():
            return [Finding(*f) for f in json.loads(kept.read_text())]
        fragments = self.fragments_of(path) if path.startswith("src/") else []
        header_filter = "(" + "|".join(re.escape("src/" + f) for f in fragments) + ")$" if fragments else "^$"
        command = [CLANG_TIDY, "--quiet", f"--config-file={self.root / '.clang-tidy'}", f"--header-filter={header_filter}", str(self.root / path), "--"]
        done = subprocess.run(command + FLAGS + self.includes, capture_output=True, text=True, cwd=self.root)
        findings = parse(done.stdout, self.root)
        if done.returncode < 0 or (done.returncode and not findings):
            findings = [Finding("compile", path, 1, f"clang-tidy ended with {done.returncode}: {(done.stderr.strip() or '?').splitlines()[-1]}")]
        partial = kept.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps([dataclasses.astuple(f) for f in findings]))
        os.replace(partial, kept)
        return findings


def findings(root, paths=None):
    """Every finding over src/, each once, in order."""
    if shutil.which(CLANG_TIDY) is None:
        raise RuntimeError(f"{CLANG_TIDY} is missing: run scripts/setup test")
    runner = Runner(root)
    if paths is None:
        paths = [p for p in tree.tracked(root, ".h", ".cc") if p.startswith("src/") and not is_fragment(tree.read(runner.root / p))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return sorted({f for found in pool.map(runner.run, paths) for f in found})


def naming(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "naming"]


def headers(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "compile"]


def lengths(found):
    """(file, line, function, lines) of the functions past the house's 60 lines."""
    return [(f.file, f.line, f.text.rpartition(" ")[0], int(f.text.rpartition(" ")[2])) for f in found if f.kind == "length"]
