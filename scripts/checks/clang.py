"""clang-tidy over src/ gives two checks: names, and headers that compile alone.

Names: the .cc files that can be read as one (unity.py) are, so that what they include is parsed once; what it finds in any file or header
of the project counts. If a group does not compile, each of its files is parsed by itself, and that result counts.
Headers: one that some source includes first compiles alone if that source does: an object file of a build that is newer than all it was
made from proves it. Any other header is parsed by itself.
A header that is meant to be included inside something (a kernel's ISA region) says "Not self-contained" or "include inside a region" in
its first lines; its names are checked through the files that include it.
Results are kept in build/lint by the hash of everything that was read of the project, so a second run only parses what changed.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from checks import tree, unity

# Of PyPI: from LLVM 22 on it leaves system headers alone, which is four fifths of what Debian's 19 does.
CLANG_TIDY = str(pathlib.Path(__file__).resolve().parents[2] / "build/venv/bin/clang-tidy")
FLAGS = ["-x", "c++", "-std=c++20", "-Wno-everything", "-DPAGODA_SOURCE_DIR=\"\"", "-DPAGODA_VERSION=\"\""]
MOST_AT_ONCE = 24  # sources of one group
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

    def key(self, paths):
        names = set().union(*(tree.closure(self.root, path.removeprefix("src/")) for path in paths))
        texts = {n: tree.read(self.root / "src" / n) for n in sorted(names)}
        shim = self.root / "rust/textshim/textshim.h"
        if shim.is_file() and any('"textshim.h"' in text for text in texts.values()):
            texts[shim.name] = tree.read(shim)
        return hashlib.sha256(repr((self.salt, paths, texts)).encode()).hexdigest()

    def groups(self, sources):
        """Largest first: the last to end is a small one."""
        by_folder = collections.defaultdict(list)
        for path in sources:
            by_folder[path.split("/")[1]].append(path)
        return sorted((g for folder in by_folder.values() for g in unity.groups(self.root, folder, MOST_AT_ONCE)), key=len, reverse=True)

    def parse_group(self, paths):
        """The findings in files that are read as one, or, where that does not compile, in each."""
        if len(paths) > 1:
            found = self.run(paths)
            if not any(f.kind == "compile" for f in found):
                return found
        return [f for path in paths for f in self.run((path,))]

    def run(self, paths):
        key = self.key(paths)
        kept = self.cache / f"{key}.json"
        if kept.is_file():
            return [Finding(*f) for f in json.loads(kept.read_text())]
        main_file = self.root / paths[0]
        if len(paths) > 1:
            main_file = self.cache / f"{key}.cc"
            main_file.write_text("".join(f'#include "{p.removeprefix("src/")}"\n' for p in paths))
        command = [CLANG_TIDY, "--quiet", f"--config-file={self.root / '.clang-tidy'}", f"--header-filter=^{re.escape(str(self.root))}/src/", str(main_file)]
        done = subprocess.run(command + ["--", *FLAGS, *self.includes], capture_output=True, text=True, cwd=self.root)
        findings = parse(done.stdout, self.root)
        if done.returncode < 0 or (done.returncode and not findings):
            findings = [Finding("compile", paths[0], 1, f"clang-tidy ended with {done.returncode}: {(done.stderr.strip() or '?').splitlines()[-1]}")]
        partial = kept.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps([dataclasses.astuple(f) for f in findings]))
        os.replace(partial, kept)
        return findings


def compiled_alone(root, sources):
    """The headers that an object file proves: its source includes them first, and all that the source reads is older."""
    objects = {}
    for path in root.glob("build/*/CMakeFiles/*.dir/src/**/*.cc.o"):
        source = path.as_posix().partition(".dir/")[2].removesuffix(".o")
        objects[source] = max(objects.get(source, 0), path.stat().st_mtime_ns)
    proven = set()
    for source in sources:
        reads = (root / "src" / name for name in tree.closure(root, source.removeprefix("src/")))
        if max(path.stat().st_mtime_ns for path in reads) < objects.get(source, 0):
            proven.add(f"src/{first_include(tree.read(root / source))}")
    return proven


def findings(root, below=()):
    """Every finding over src/, or in the files below some folders, each once, in order."""
    if shutil.which(CLANG_TIDY) is None:
        raise RuntimeError(f"{CLANG_TIDY} is missing: run scripts/setup test")
    runner = Runner(root)
    below = tuple(below) or ("src/",)
    paths = [p for p in tree.tracked(root, ".h", ".cc") if p.startswith(below) and p.startswith("src/") and not is_fragment(tree.read(runner.root / p))]
    sources = [p for p in paths if p.endswith(".cc")]
    proven = compiled_alone(runner.root, sources)
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        found = [pool.submit(runner.parse_group, tuple(group)) for group in runner.groups(sources)]
        found += [pool.submit(runner.run, (p,)) for p in paths if p.endswith(".h") and p not in proven]
        return sorted({f for some in found for f in some.result() if f.file.startswith(below)})


def naming(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "naming"]


def headers(found):
    return [f"{f.file}:{f.line}: {f.text}" for f in found if f.kind == "compile"]

