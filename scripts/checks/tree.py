"""The project's files and their includes, as the checks see them."""

import functools
import pathlib
import re
import subprocess

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def tracked(root, *suffixes):
    """Files git knows or would add (not ignored), relative to root, with one of the suffixes."""
    out = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         check=True, capture_output=True, text=True).stdout
    names = sorted(set(filter(None, out.split("\0"))))
    return [n for n in names if (not suffixes or n.endswith(suffixes)) and (pathlib.Path(root) / n).is_file()]


def includes(text):
    """(line number, header, quoted?) of every include directive."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1] or match[2], match[1] is not None


@functools.cache
def read(path):
    return pathlib.Path(path).read_text(errors="replace")


def closure(root, name):
    """The project headers under src/ that a file reads, directly or not, itself included; relative to src/."""
    src = pathlib.Path(root) / "src"
    seen, todo = set(), [name]
    while todo:
        current = todo.pop()
        if current in seen or not (src / current).is_file():
            continue
        seen.add(current)
        here = pathlib.PurePosixPath(current).parent
        for _, header, _ in includes(read(src / current)):
            todo += [header, str(here / header)]
    return seen
