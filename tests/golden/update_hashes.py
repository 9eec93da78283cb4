#!/usr/bin/env python3
"""Writes values/hashes.json: the logits hash of each generated model's text per arithmetic and KV format.

    update_hashes.py [ISA]      with $PAGODA_BIN or the release build; ISA (default: the program's choice) must not matter

A commit that changes a hash raises the numerics revision and says why.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny_models
from golden_values import ARITHMETICS, KV_FORMATS, TINY, VALUES, numerics_options, text_ids
from pagoda_process import ROOT, Pagoda


def main(isa):
    binary = ROOT / os.environ.get("PAGODA_BIN", "build/release/pagoda")
    paths = tiny_models.generate(ROOT / "build" / "tiny_models")
    forced = ("--isa", isa) if isa else ()
    with tempfile.TemporaryDirectory() as folder:
        pagoda = Pagoda(binary, folder)
        hashes = {
            model: {
                f"{arithmetic}/{kv_format}": pagoda.evaluate(
                    paths[model], text_ids(model), *numerics_options(arithmetic, kv_format), *forced
                )["logits_hash"]
                for arithmetic in ARITHMETICS
                for kv_format in KV_FORMATS
            }
            for model in TINY
        }
    (VALUES / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")
    print(f"{sum(map(len, hashes.values()))} hashes of {len(hashes)} models")


if __name__ == "__main__":
    main(*sys.argv[1:2] or [None])
