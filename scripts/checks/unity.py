#!/usr/bin/env python3
"""Which .cc files can be read as one, so that what all of them include is parsed once: `scripts/lint naming` and the sanitized builds do so.

  scripts/checks/unity.py MOST FILE...   prints groups of at most MOST of the files (of the project), one a line

Two files may share a group if neither reads, for whatever it means there, a word that the other keeps to itself: what it declares in its
anonymous namespace, by a using-declaration or an alias outside of classes, or as a macro. In the house's format such a declaration starts
in column 0. A file that opens an ISA region stays alone.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from checks import tree  # noqa: E402

WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*")  # looked up here: not a member of something, not of a namespace that is named
UNREAD = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)  # comments and literals
REGION = re.compile(r"^#pragma (?:GCC|clang)", re.M)
NAMESPACE = re.compile(r"namespace (?:([\w:]+) )?\{")
ALIAS = re.compile(r"(?:using|namespace) (?!namespace)(?:[\w:]*::)?(\w+)(?: =.*)?;|#define (\w+)")
TYPE = re.compile(r"(?:template <.*> )?(?:struct|class|union|enum(?: class)?) (\w+)")
TEST = re.compile(r"(?:TYPED_)?TEST(?:_[FP])?\((\w+), (\w+)\)")
NAME = re.compile(r"\b(?!alignas\b|decltype\b|operator\b)(\w+)(?:\(|\[| = |;| ?\{)")  # the first such: a function, a variable


def own_words(text):
    """What the file declares that no other file sees: {word: the line, if another file may say the same}."""
    words, open_namespaces = {}, []
    for line in text.splitlines():
        if opened := NAMESPACE.match(line):
            open_namespaces.append(opened[1])
        elif line.startswith("}  // namespace"):
            open_namespaces.pop()
        elif found := ALIAS.match(line):
            words[found[1] or found[2]] = line if found[1] else ""
        elif found := TEST.match(line):
            words[f"{found[1]}_{found[2]}_Test"] = ""
        elif None in open_namespaces and (found := TYPE.match(line) or (NAME.search(line) if line[:1].isalpha() or line[:2] == "[[" else None)):
            words[found[1]] = ""
    return words


class Source:
    def __init__(self, root, path):
        self.own = own_words(tree.read(root / path))
        self.reads = {name: words_of(root / "src" / name) for name in tree.closure(root, path.removeprefix("src/"))}
        self.is_region = any(REGION.search(tree.read(root / "src" / name)) for name in self.reads)

    def may_follow(self, other):
        """Whether what `other` declares means nothing here; what both include it has read before."""
        own = {word for word, line in other.own.items() if not line or self.own.get(word) != line}
        return own.isdisjoint(self.own) and all(own.isdisjoint(words) for name, words in self.reads.items() if name not in other.reads)


def words_of(path, kept={}):
    if path not in kept:
        kept[path] = set(WORD.findall(UNREAD.sub(" ", tree.read(path))))
    return kept[path]


def groups(root, paths, most):
    """The paths (relative to root) in groups of at most `most`, in order."""
    made = []  # of (paths, sources)
    for path in paths:
        source = Source(root, path)
        fitting = (group for group in made if len(group[0]) < most and not source.is_region
                   and all(not s.is_region and source.may_follow(s) and s.may_follow(source) for s in group[1]))
        group = next(fitting, None)
        if group is None:
            made.append(group := ([], []))
        group[0].append(path)
        group[1].append(source)
    return [group[0] for group in made]


def main(arguments):
    root = pathlib.Path(__file__).resolve().parents[2]
    paths = [pathlib.Path(argument).resolve().relative_to(root).as_posix() for argument in arguments[1:]]
    for group in groups(root, paths, int(arguments[0])):
        print(";".join(group))


if __name__ == "__main__":
    main(sys.argv[1:])
