"""Layer table: direct includes under src/ against scripts/layers.txt, whose head explains the rules."""

import dataclasses
import fnmatch
import pathlib

from checks import tree


@dataclasses.dataclass
class Rules:
    may: dict  # WHO -> targets
    never: list  # (WHO, header patterns)
    doors: list  # (header patterns, who may)


def parse(text):
    rules = Rules({}, [], [])
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        head, _, tail = line.partition(":")
        kind, *names = head.split()
        if kind == "never":
            rules.never.append((names[0], tail.split()))
        elif kind == "door":
            rules.doors.append((names, tail.split()))
        else:
            rules.may[head] = tail.split()
    return rules


def covers(pattern, name):
    """A folder covers what is below it; a pattern covers what it matches, by path or, without a slash, by file name."""
    return (name.startswith(pattern + "/") or fnmatch.fnmatchcase(name, pattern)
            or ("/" not in pattern and fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)))


def allowed(targets, header):
    if any(covers(t[1:], header) for t in targets if t.startswith("-")):
        return False
    return any(covers(t, header) for t in targets if not t.startswith("-"))


def line_for(rules, name):
    """The most specific line of the table for a file: (WHO, targets) or None."""
    who = max((w for w in rules.may if covers(w, name)), key=len, default=None)
    return None if who is None else (who, rules.may[who])


def check_project_include(rules, name, header):
    folder = name.partition("/")[0]
    for who, patterns in rules.never:
        if covers(who, name) and any(covers(p, header) for p in patterns if not p.startswith("<")):
            return f"{who} must never include {header}"
    if header.startswith(folder + "/"):
        return None
    entry = line_for(rules, name)
    if entry is None:
        return f"folder {folder} is not in scripts/layers.txt"
    who, targets = entry
    return None if allowed(targets, header) else f"{who} may include only: {' '.join(targets) or 'nothing'}; not {header}"


def check_foreign_include(rules, name, header):
    for who, patterns in rules.never:
        if covers(who, name) and any(fnmatch.fnmatchcase(f"<{header}>", p) for p in patterns):
            return f"{who} must never include <{header}>"
    for patterns, who in rules.doors:
        if any(fnmatch.fnmatchcase(f"<{header}>", p) for p in patterns):
            ok = any(covers(w, name) for w in who)
            return None if ok else f"<{header}> has one door: {' '.join(who)}"
    return None


def check(root, rules_text=None):
    root = pathlib.Path(root)
    rules = parse(rules_text if rules_text is not None else (root / "scripts/layers.txt").read_text())
    src = root / "src"
    problems = []
    for path in tree.tracked(root, ".h", ".cc", ".inc"):
        if not path.startswith("src/"):
            continue
        name = path[len("src/"):]
        here = pathlib.PurePosixPath(name).parent
        for line, header, quoted in tree.includes(tree.read(root / path)):
            if (src / header).is_file():
                message = check_project_include(rules, name, header)
            elif quoted and (src / here / header).is_file():
                message = f'write the path from src/: "{here}/{header}"'
            else:
                message = check_foreign_include(rules, name, header)
            if message:
                problems.append(f"{path}:{line}: {message}")
    return problems
