"""Sizes: a report of functions past 60 lines and files past 400; an error past 120 and 800 unless the file's top comment has a line
"Long: why"."""

import pathlib

from checks import tree

FUNCTION_LINES, FILE_LINES = 60, 400
FUNCTION_LIMIT, FILE_LIMIT = 120, 800
SUFFIXES = (".h", ".cc", ".rs", ".py", ".ts")


def says_why(text):
    return any("Long:" in line for line in text.splitlines()[:20])


def check(root, functions, names=None):
    """(report, problems). functions: (file, line, name, lines), as checks.clang.lengths gives."""
    root, report, problems = pathlib.Path(root), [], []

    def add(where, lines, usual, limit, what, path):
        if lines > limit and not says_why(tree.read(root / path)):
            problems.append(f'{where}: {what} of {lines} lines; past {limit} the file\'s top comment needs a "Long: why" line')
        elif lines > usual:
            report.append(f"{where}: {what} of {lines} lines")

    for path in names if names is not None else tree.tracked(root, *SUFFIXES):
        add(path, len(tree.read(root / path).splitlines()), FILE_LINES, FILE_LIMIT, "file", path)
    for path, line, name, lines in functions:
        add(f"{path}:{line}", lines, FUNCTION_LINES, FUNCTION_LIMIT, f"function {name}", path)
    return report, problems
