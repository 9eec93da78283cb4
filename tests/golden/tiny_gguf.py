"""GGUF v3 files byte by byte, without a float: bit patterns, random weights of every type, the container.

Contract: the same bytes on every machine and Python: random bits are SHAKE-128 of a key, the rest integer arithmetic.
Standard library only. Source of the formats: the GGUF specification and ggml's block structs.
"""

import hashlib
import math
import struct

ALIGNMENT = 32

# ---- numbers as bit patterns ---------------------------------------------------------------------------------------


def float_bits(num, den, exponent_bits, mantissa_bits):
    """Bit pattern of num/den (rounded toward zero) in a binary float format; subnormals included, no overflow check."""
    if num == 0:
        return 0
    sign = 1 if num < 0 else 0
    num = abs(num)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = num.bit_length() - den.bit_length()
    if (num << max(0, -exponent)) < (den << max(0, exponent)):
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    shift = mantissa_bits - exponent
    significand = (num << shift) // den if shift >= 0 else num // (den << -shift)
    return (sign << (exponent_bits + mantissa_bits)) + ((exponent + bias - 1) << mantissa_bits) + significand


def f32_bits(num, den=1):
    return float_bits(num, den, 8, 23)


def f16_bits(num, den=1):
    return float_bits(num, den, 5, 10)


def bf16_bits(num, den=1):
    return float_bits(num, den, 8, 7)


def random_bytes(key, n):
    return hashlib.shake_128(key.encode()).digest(n)


# ---- weights: random blocks whose dequantized root mean square is `std` = (num, den) ---------------------------------
# name: (ggml type id, elements per block, bytes per block, rms of a weight / d in 1/1000,
#        [(offset of an f16 scale, its ratio to d in 1/2, signs: "both" | "plus" | "minus")])
QUANTS = {
    "Q4_0": (2, 32, 18, 4640, [(0, 2, "both")]),
    "Q4_1": (3, 32, 20, 4800, [(0, 2, "plus"), (2, 15, "minus")]),
    "Q5_0": (6, 32, 22, 9240, [(0, 2, "both")]),
    "Q5_1": (7, 32, 24, 9600, [(0, 2, "plus"), (2, 31, "minus")]),
    "Q8_0": (8, 32, 34, 73900, [(0, 2, "plus")]),
    "Q2_K": (10, 256, 84, 13900, [(80, 2, "plus"), (82, 3, "plus")]),
    "Q3_K": (11, 256, 110, 43400, [(108, 2, "both")]),
    "Q4_K": (12, 256, 144, 258000, [(0, 2, "plus"), (2, 15, "plus")]),
    "Q5_K": (13, 256, 176, 527000, [(0, 2, "plus"), (2, 31, "plus")]),
    "Q6_K": (14, 256, 210, 1367000, [(208, 2, "both")]),
    "IQ4_NL": (20, 32, 18, 67400, [(0, 2, "both")]),
    "IQ4_XS": (23, 256, 136, 1247000, [(0, 2, "both")]),
}
PLAIN = {"F32": 0, "F16": 1, "BF16": 30}
ALL_TYPES = ["F32", "F16", "BF16", *QUANTS]


def type_id(name):
    return PLAIN[name] if name in PLAIN else QUANTS[name][0]


def scale_table(pattern, signs, steps):
    """256 high bytes of f16 around `pattern`, a quarter of an octave apart; entry 0 is a subnormal of about nothing."""
    high = (pattern + 128) >> 8
    sign = {"both": lambda r: r & 0x80, "plus": lambda r: 0, "minus": lambda r: 0x80}[signs]
    table = bytearray(sign(r) | max(0, high + steps[r % len(steps)]) for r in range(256))
    table[0] = sign(0)
    return bytes(table)


def quant_blocks(key, n, name, std):
    _, block, size, rms, scales = QUANTS[name]
    data = bytearray(random_bytes(key, n // block * size))
    for offset, ratio, signs in scales:
        pattern = f16_bits(std[0] * 1000 * ratio, std[1] * rms * 2)
        steps = (-2, -1, 0, 1) if ratio == 2 else (-1, 0)
        data[offset + 1 :: size] = data[offset + 1 :: size].translate(scale_table(pattern, signs, steps))
    return bytes(data)


# A weight's magnitude in quarter octaves about its std, eight equally likely ones; the bits below come at random.
MAGNITUDES = (-12, -8, -5, -3, -1, 0, 1, 2)


def float_values(key, n, name, std):
    bits, unit = {"F16": (f16_bits, 8), "BF16": (bf16_bits, 5), "F32": (bf16_bits, 5)}[name]
    base = (bits(*std) + (1 << (unit - 1))) >> unit
    patterns = [((r & 0x80) << 8) | ((base + MAGNITUDES[r & 7]) << unit) for r in range(256)]
    source = random_bytes(key, 4 * n)
    choice, low = source[:n], source[n : 2 * n]
    low_bits = int.from_bytes(low.translate(bytes(r & ((1 << unit) - 1) for r in range(256))), "little")
    low_bits |= int.from_bytes(choice.translate(bytes(p & 0xFF for p in patterns)), "little")
    width = 4 if name == "F32" else 2
    data = bytearray(n * width)
    if width == 4:
        data[0::4], data[1::4] = source[2 * n : 3 * n], source[3 * n :]
    data[width - 2 :: width] = low_bits.to_bytes(n, "little")
    data[width - 1 :: width] = choice.translate(bytes(p >> 8 for p in patterns))
    return bytes(data)


def matrix(key, rows, cols, name, gain):
    """rows x cols weights with root mean square gain[0] / gain[1] / sqrt(cols)."""
    std = (gain[0] << 20, gain[1] * math.isqrt(cols << 40))
    return (float_values if name in PLAIN else quant_blocks)(key, rows * cols, name, std)


def norm(key, n, half_octaves):
    """n F32 weights between 0.75 and 1.5 times about 2^(half_octaves / 2)."""
    source = random_bytes(key, 3 * n)
    low = 0x3F40 + 64 * half_octaves
    data = bytearray(4 * n)
    for i in range(n):
        data[4 * i : 4 * i + 4] = bytes((source[n + i], source[2 * n + i])) + (low + (source[i] & 0x7F)).to_bytes(
            2, "little"
        )
    return bytes(data)


def bias(key, n, spread, outliers):
    """n F32 biases within +-spread; every 16th is `outliers` times as large."""
    return b"".join(
        struct.pack("<I", f32_bits((r - 128) * spread * (outliers if i % 16 == 5 else 1), 128))
        for i, r in enumerate(random_bytes(key, n))
    )


# ---- GGUF v3 -------------------------------------------------------------------------------------------------------


class F32:
    """A metadata float, num/den, kept as its bits."""

    def __init__(self, num, den=1):
        self.bits = f32_bits(num, den)


def gguf_string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value):
    """(type id, bytes): bool 7, string 8, array 9, F32 6, a negative or listed int INT32 5, else UINT32 4."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    if isinstance(value, F32):
        return 6, struct.pack("<I", value.bits)
    if isinstance(value, list):
        kind = 5 if isinstance(value[0], int) else gguf_value(value[0])[0]
        items = b"".join(struct.pack("<i", item) if kind == 5 else gguf_value(item)[1] for item in value)
        return 9, struct.pack("<IQ", kind, len(value)) + items
    return 4, struct.pack("<I", value)


def gguf_file(metadata, tensors):
    """tensors: (name, shape with the row length first, type name, bytes)."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata:
        kind, raw = gguf_value(value)
        out += [gguf_string(key), struct.pack("<I", kind), raw]
    offset = 0
    for name, shape, kind, data in tensors:
        out += [gguf_string(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id(kind), offset)]
        offset += len(data) + -len(data) % ALIGNMENT
    out.append(b"\0" * (-sum(map(len, out)) % ALIGNMENT))
    for _, _, _, data in tensors:
        out += [data, b"\0" * (-len(data) % ALIGNMENT)]
    return b"".join(out)
