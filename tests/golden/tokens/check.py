#!/usr/bin/env python3
"""Compares `pagoda tokenize` with llama.cpp's token ids (made by llama_ids.cc) on every string of corpus.txt.

    check.py PAGODA MODEL EXPECTED [--every N]     EXPECTED: a .ids or .fnv file of this folder; N: only every Nth string

One process per string; exits 1 and names the first mismatches.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def unescaped(line: bytes) -> bytes:
    named = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}
    parts = line.split(b"\\")
    out = bytearray(parts[0])
    k = 1
    while k < len(parts):
        part = parts[k]
        if not part:  # an escaped backslash: the next part is plain text
            out += b"\\" + (parts[k + 1] if k + 1 < len(parts) else b"")
            k += 2
            continue
        if part[:1] == b"x":
            out.append(int(part[1:3], 16))
            out += part[3:]
        else:
            out += named[part[:1]] + part[1:]
        k += 1
    return bytes(out)


def shown(ids: str, name: str) -> str:
    if name.endswith(".ids"):
        return ids
    value = 2166136261
    for byte in ids.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{value:08x}"


def tokenize(pagoda: str, model: str, file: str, *flags: str) -> str:
    run = subprocess.run([pagoda, "tokenize", model, "--file", file, *flags], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"pagoda tokenize failed: {run.stderr.strip()}")
    return " ".join(map(str, json.loads(run.stdout)))


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("pagoda")
    args.add_argument("model")
    args.add_argument("expected")
    args.add_argument("--every", type=int, default=1)
    args = args.parse_args()
    corpus = (HERE / "corpus.txt").read_bytes().split(b"\n")[:-1]
    expected = pathlib.Path(args.expected).read_text(encoding="ascii").split("\n")[:-1]
    assert len(corpus) == len(expected), (len(corpus), len(expected))
    wrong = checked = 0
    with tempfile.NamedTemporaryFile(prefix="pagoda-corpus-") as file:
        for number in range(0, len(corpus), args.every):
            pathlib.Path(file.name).write_bytes(unescaped(corpus[number]))
            plain = shown(tokenize(args.pagoda, args.model, file.name, "--bos", "auto"), args.expected)
            parsed = shown(tokenize(args.pagoda, args.model, file.name, "--bos", "auto", "--parse-special"), args.expected)
            got = plain if plain == parsed else f"{plain}|{parsed}"
            checked += 1
            if got != expected[number]:
                wrong += 1
                if wrong <= 5:
                    print(f"line {number + 1}: {corpus[number]!r}\n  want {expected[number]}\n  got  {got}")
    print(f"{checked - wrong} of {checked} strings equal")
    return 1 if wrong else 0


sys.exit(main())
