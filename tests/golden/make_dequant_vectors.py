#!/usr/bin/env python3
"""Makes tests/golden/dequant/<TYPE>.bin: random blocks of each GGUF type, then the f32 values the `gguf` package gives them.

Needs `pip install gguf numpy`. The block count follows from the file size: n * (block bytes + 4 * block elements).
Scales are drawn from ordinary values, zeros of both signs, subnormals and the largest f16, never infinities or NaNs.
"""
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Byte offsets of the f16 fields of a block.
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}
EDGES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00], dtype=np.uint16)


def random_f16(rng: np.random.Generator, n: int) -> np.ndarray:
    """Half ordinary weights' scales, a quarter any finite f16, a quarter edges."""
    ordinary = (rng.standard_normal(n) * 0.01).astype(np.float16).view(np.uint16)
    anything = rng.integers(0, 0x7C00, n, dtype=np.uint16) | (rng.integers(0, 2, n, dtype=np.uint16) << np.uint16(15))
    edges = EDGES[rng.integers(0, len(EDGES), n)]
    kind = rng.integers(0, 4, n)
    return np.where(kind < 2, ordinary, np.where(kind == 2, anything, edges)).astype(np.uint16)


def make_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    if name in ("F16", "BF16"):
        bits = np.concatenate([random_f16(rng, 256 - len(EDGES)), EDGES])
        return bits.view(np.uint8).reshape(1, -1)
    if name == "F32":
        return rng.standard_normal(64).astype(np.float32).view(np.uint8).reshape(1, -1)
    n_blocks = 16 if elements == 256 else 48
    blocks = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    blocks[0, :] = 0
    blocks[1, :] = 255
    for field in F16_FIELDS[name]:
        blocks[:, field:field + 2] = random_f16(rng, n_blocks).reshape(-1, 1).view(np.uint8)
    return blocks


def main() -> None:
    folder = pathlib.Path(__file__).parent / "dequant"
    folder.mkdir(exist_ok=True)
    for name in ["F32", "F16", "BF16", *F16_FIELDS]:
        blocks = make_blocks(name, np.random.default_rng(int(GGMLQuantizationType[name])))
        values = dequantize(blocks, GGMLQuantizationType[name]).astype(np.float32)
        assert not np.isnan(values).any(), name
        (folder / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())
        print(f"{name}: {blocks.size} + {values.nbytes} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
