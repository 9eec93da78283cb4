"""Promise 1 at the process level: threads, ISA, chunk sizes and the cache's absence change no bit of the logits.

Batches, preemption and prefix hits are compared inside one process by the engine's own tests.
"""

import pytest
from golden_values import ARITHMETICS, ISAS, KV_FORMATS, REAL, TINY, numerics_options, prompt_ids, text_ids
from pagoda_process import IsaMissing

EVERY_ARITHMETIC = (*ARITHMETICS, "bf16")  # bf16's hashes are compared, not committed, until a machine with AMX has confirmed them
CHUNKS = (1, 7, 32, 256)
UNCACHED_TOKENS = 48
VARIANTS = [("-t", 2)] + [("--chunk", chunk) for chunk in CHUNKS] + [("--chunk", 7, "-t", 2)]


def logits_hash(pagoda, path, ids, *options):
    return pagoda.evaluate(path, ids, *options)["logits_hash"]


def different(pagoda, path, ids, numerics, variants):
    """The variants whose hash is not the plain run's (one thread, default chunks and ISA)."""
    plain = logits_hash(pagoda, path, ids, *numerics, "-t", 1)
    found = {variant: logits_hash(pagoda, path, ids, *numerics, *variant) for variant in variants}
    return {variant: value for variant, value in found.items() if value != plain}


def isa_variants(pagoda, path, isas):
    """Those ISAs that this machine has."""
    variants = []
    for isa in isas:
        try:
            logits_hash(pagoda, path, (1, 2, 3), "--isa", isa)
            variants.append(("--isa", isa))
        except IsaMissing:
            pass
    return variants


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("arithmetic", EVERY_ARITHMETIC)
@pytest.mark.parametrize("model", TINY)
def test_same_bits(pagoda, tiny_models, model, arithmetic, kv_format):
    path, numerics = tiny_models[model], numerics_options(arithmetic, kv_format)
    variants = VARIANTS + isa_variants(pagoda, path, ISAS)
    assert different(pagoda, path, text_ids(model), numerics, variants) == {}


@pytest.mark.parametrize("arithmetic", EVERY_ARITHMETIC)
@pytest.mark.parametrize("model", TINY)
def test_same_bits_without_cache(pagoda, tiny_models, model, arithmetic):
    ids = prompt_ids(model, "medium")[:UNCACHED_TOKENS]
    for kv_format in KV_FORMATS:
        numerics = numerics_options(arithmetic, kv_format)
        assert different(pagoda, tiny_models[model], ids, numerics, [("--kv-cache", "off")]) == {}


@pytest.mark.full
@pytest.mark.parametrize("arithmetic", EVERY_ARITHMETIC)
@pytest.mark.parametrize("model", REAL)
def test_same_bits_of_real_models(pagoda, real_model, model, arithmetic):
    path, numerics = real_model(model), numerics_options(arithmetic, "auto")
    vector_isas = isa_variants(pagoda, path, ISAS[1:])
    ids = prompt_ids(model, "beagle")
    assert different(pagoda, path, ids, numerics, VARIANTS + vector_isas) == {}
    assert different(pagoda, path, ids[:UNCACHED_TOKENS], numerics, [("--kv-cache", "off")]) == {}
