"""Docs: every path and file::function that a *.md file names in `backquotes` exists, and so does every file it links to.

A path is looked for from the project's root, from src/, from the document's folder, or, without a slash, as a file name anywhere.
"""

import fnmatch
import pathlib
import re

from checks import tree

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"^[\w.*{},+-]+(?:/[\w.*{},+-]+)*/?$")
FUNCTION = re.compile(r"^([\w./-]+\.(?:h|cc|rs|py|ts))::([\w~:]+)$")
SOURCE_NAME = re.compile(r"^[\w-]+\.(?:h|cc|rs|py|ts|md|cmake)$")
NOT_TRACKED = ("build/", "~", "/")


def braces(name):
    """`x.{h,cc}` -> x.h, x.cc."""
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return [n for part in match[1].split(",") for n in braces(name[:match.start()] + part + name[match.end():])]


class Names:
    def __init__(self, names):
        self.files = set(names)
        self.folders = {str(p) for n in names for p in pathlib.PurePosixPath(n).parents}
        self.tops = {n.split("/")[0] for n in names if "/" in n}
        self.src = {n.split("/")[1] for n in names if n.startswith("src/") and n.count("/") > 1}

    def looks_like_path(self, word):
        if word.startswith(NOT_TRACKED) or not PATH.match(word):
            return False
        if "/" not in word:
            return bool(SOURCE_NAME.match(word)) and "*" not in word
        return word.split("/")[0] in self.tops | self.src

    def find(self, word, document):
        """The files that a word names; folders count as themselves."""
        word = word.rstrip("/")
        here = str(pathlib.PurePosixPath(document).parent)
        tries = [word, f"src/{word}", word if here == "." else f"{here}/{word}"]
        if "/" not in word:
            tries.append(f"*/{word}")
        everything = self.files | self.folders
        return [n for t in tries for n in ([t] if t in everything else fnmatch.filter(everything, t) if "*" in t else [])]


def check_document(names, root, document, text):
    problems = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        where = f"{document}:{number}"
        for word in SPAN.findall(line):
            if match := FUNCTION.match(word):
                files = names.find(match[1], document)
                function = match[2].rpartition("::")[2]
                if not files:
                    problems.append(f"{where}: {match[1]} does not exist")
                elif not any(re.search(rf"(?<!\w){re.escape(function)}\b", tree.read(root / f)) for f in files if f in names.files):
                    problems.append(f"{where}: {match[1]} has no {function}")
            elif names.looks_like_path(word):
                problems += [f"{where}: {n} does not exist" for n in braces(word) if not names.find(n, document)]
        for target in LINK.findall(line):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not ((root / document).parent / target).exists():
                problems.append(f"{where}: the link to {target} leads nowhere")
    return problems


def check(root):
    root = pathlib.Path(root)
    names = Names(tree.tracked(root))
    return [p for d in tree.tracked(root, ".md") for p in check_document(names, root, d, tree.read(root / d))]
