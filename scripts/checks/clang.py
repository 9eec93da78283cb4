"""One clang-tidy run per file of src/ gives two checks: names, and headers that compile alone.

Results are kept in build/lint by the hash of everything the file reads from the project, so a second run only parses what changed.
A header that some source file includes first compiles alone if that file does; it is checked there and not parsed again.
A header that is meant to be included inside something (a kernel's ISA region) says "Not self-contained" or "include inside a region" in
its first lines; its names are then checked through the files that include it.
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

# Of PyPI: from LLVM 22 on it leaves system headers alone, which is four fifths of what Debian's 19 does.
CLANG_TIDY = str(pathlib.Path(__file__).resolve().parents[2] / "build/venv/bin/clang-tidy")
FLAGS = ["-x", "c++", "-std=c++20", "-Wno-everything", "-DPAGODA_SOURCE_DIR=\"\"", "-DPAGODA_VERSION=\"\""]
FRAGMENT = re.compile(r"Not self-contained|[Ii]nclude inside a region")
FINDING = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<level>error|warning|note): (?P<text>.*?)(?: \[(?P<check>[\w.,-]+)\])?$", re.M)


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    kind: str  # naming, compile
    file: str
    line: int
    text: str


def is_fragment(text):
    return any(FRAGMENT.search(line) for line in text.splitlines()[:12])


def first_include(text):
    return next((header for _, header, quoted in tree.includes(text) if quoted), None) if text else None


def parse(output, root):
    findings = []
    for match in FINDING.finditer(output):
        path = os.path.relpath(os.path.join(root, match["file"]), root)
        check, text, line = match["check"] or "", match["text"], int(match["line"])
        if check.startswith("readability-identifier-naming"):
            findings.append(Finding("naming", path, line, text))
        elif match["level"] == "error":
            findings.append(Finding("compile", path, line, text))
    return findings


def stubs(cache):
    """Generated headers, as far as names and types go."""
    folder = cache / "include"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_recipes.h").write_text("#pragma once\n#include <string_view>\nnamespace pagoda::cmd {\n"
                                            "inline constexpr std::string_view kModelRecipes = \"\", kKvProbes = \"\";\n}  // namespace pagoda::cmd\n")
    return folder


class Runner:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.cache = self.root / "build" / "lint"
        self.includes = ["-I" + str(self.root / "src"), "-I" + str(self.root / "rust/textshim"), "-I" + str(stubs(self.cache))]
        version = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
        self.salt = version + (self.root / ".clang-tidy").read_text() + pathlib.Path(__file__).read_text()

    def key(self, path):
        texts = {n: tree.read(self.root / "src" / n) for n in sorted(tree.closure(self.root, path.removeprefix("src/")))}
        shim = self.root / "rust/textshim/textshim.h"
        if shim.is_file() and any('"textshim.h"' in text for text in texts.values()):
            texts[shim.name] = tree.read(shim)
        return hashlib.sha256(repr((self.salt, path, texts)).encode()).hexdigest()

    def checked_with(self, path):
        """The headers whose names are checked through this file: the one it includes first, and fragments."""
        name = path.removeprefix("src/")
        first = first_include(tree.read(self.root / path)) if path.endswith(".cc") else None
        return [n for n in tree.closure(self.root, name) if n == first or is_fragment(tree.read(self.root / "src" / n))]

    def run(self, path):
        kept = self.cache / f"{self.key(path)}.json"
        if kept.is_file():
            return [Finding(*f) for f in json.loads(kept.read_text())]
        headers_too = self.checked_with(path)
        header_filter = "(" + "|".join(re.escape("src/" + h) for h in headers_too) + ")$" if headers_too else "^$"
        command = [CLANG_TIDY, "--quiet", f"--config-file={self.root / '.clang-tidy'}", f"--header-filter={header_filter}", str(self.root / path), "--"]
        done = subprocess.run(command + FLAGS + self.includes, capture_output=True, text=True, cwd=self.root)
        findings = parse(done.stdout, self.root)
        if done.returncode < 0 or (done.returncode and not findings):
            findings = [Finding("compile", path, 1, f"clang-tidy ended with {done.returncode}: {(done.stderr.strip() or '?').splitlines()[-1]}")]
        partial = kept.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps([dataclasses.astuple(f) for f in findings]))
        os.replace(partial, kept)
        return findings


def findings(root, below=()):
    """Every finding over src/, or over the files below some folders, each once, in order."""
    if shutil.which(CLANG_TIDY) is None:
        raise RuntimeError(f"{CLANG_TIDY} is missing: run scripts/setup test")
    runner = Runner(root)
    paths = [p for p in tree.tracked(root, ".h", ".cc") if p.startswith("src/") and not is_fragment(tree.read(runner.root / p))]
    proven = {first_include(tree.read(runner.root / p)) for p in paths if p.endswith(".cc")}
    paths = [p for p in paths if p.removeprefix("src/") not in proven and (not below or p.startswith(tuple(below)))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return sorted({f for found in pool.map(runner.run, paths) for f in found})


def naming(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "naming"]


def headers(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "compile"]

