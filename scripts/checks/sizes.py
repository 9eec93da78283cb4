"""Sizes: a report of functions past 60 lines and files past 400; an error past 120 and 800 unless the file's top comment has a line
"Long: why"."""

import pathlib
import re

from checks import tree

FUNCTION_LINES, FILE_LINES = 60, 400
FUNCTION_LIMIT, FILE_LIMIT = 120, 800
SUFFIXES = (".h", ".cc", ".rs", ".py", ".ts")
CLOSING = re.compile(r"^( {0,4})\}(?:\s*//.*)?$")
NAME = re.compile(r"([\w:~]+|operator\S+)\s*\(")
NOT_FUNCTION = re.compile(r"\s*(?:namespace|class|struct|enum|union|extern \"C\"|if|else|for|while|switch|do|try|case)\b|\s*(?:\}|//)")


def indent_of(line):
    return len(line) - len(line.lstrip())


def says_why(text):
    return any("Long:" in line for line in text.splitlines()[:20])


def functions(text):
    """(line, name, lines) of every function in clang-formatted C++: a body closes at the indent where its signature begins."""
    found, lines = [], text.splitlines()
    for end, line in enumerate(lines):
        if not (closing := CLOSING.match(line)):
            continue
        indent = len(closing[1])
        start = end - 1
        while start >= 0 and (not lines[start].strip() or lines[start].startswith("#") or indent_of(lines[start]) > indent):
            start -= 1
        signature = "".join(lines[max(start, 0):end]).partition("{")[0]
        if start >= 0 and (name := NAME.search(signature)) and not NOT_FUNCTION.match(lines[start]):
            found.append((start + 1, name[1], end - start + 1))
    return found


def check(root, names=None):
    """(report, problems): lines to read, and those that fail."""
    root, report, problems = pathlib.Path(root), [], []

    def add(where, lines, usual, limit, what, why_given):
        if lines > limit and not why_given:
            problems.append(f'{where}: {what} of {lines} lines; past {limit} the file\'s top comment needs a "Long: why" line')
        elif lines > usual:
            report.append(f"{where}: {what} of {lines} lines")

    for path in names if names is not None else tree.tracked(root, *SUFFIXES):
        text = tree.read(root / path)
        add(path, len(text.splitlines()), FILE_LINES, FILE_LIMIT, "file", says_why(text))
        for line, name, lines in functions(text) if path.endswith((".h", ".cc")) else []:
            add(f"{path}:{line}", lines, FUNCTION_LINES, FUNCTION_LIMIT, f"function {name}", says_why(text))
    return report, problems
