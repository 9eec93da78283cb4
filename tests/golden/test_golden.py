"""Results against the numpy reference (values/*.json).

f32 arithmetic and bf16 KV: top-20 logits within 0.5 % of the logit range (0.1 % for the generated models, whose reference
rounds its KV to bf16 too), mean loss within 0.2 %; int8 arithmetic: loss within 1 %; with the default KV format (q8) 1 %
more. The logits hashes of the generated models are committed and hold on every ISA.
"""

import pytest
from golden_values import ARITHMETICS, ISAS, KV_FORMATS, REAL, TINY
from golden_values import committed_hashes, numerics_options, text_ids, values_of
from pagoda_process import IsaMissing

LOGIT_TOLERANCE = {"f32": 0.005, "bf16": 0.001}  # by the KV format of the reference
LOSS_TOLERANCE = {("f32", "bf16"): 0.002, ("int8", "bf16"): 0.01, ("int8", "auto"): 0.02}
TOP = 20
MODELS = TINY + [name if name == "smollm2" else pytest.param(name, marks=pytest.mark.full) for name in REAL]


@pytest.fixture
def path_of(tiny_models, real_model):
    return lambda model: tiny_models[model] if model in tiny_models else real_model(model)


def top_differences(golden, found, tolerance):
    """One line for each logit that differs; an id that only one list has must lie at the other list's end."""
    golden, found = dict(golden), dict(found)
    problems = []
    for token in golden.keys() | found.keys():
        a = golden.get(token, min(golden.values()))
        b = found.get(token, min(found.values()))
        in_both = token in golden and token in found
        wrong = abs(a - b) > tolerance if in_both else (a > b if token in golden else b > a) and abs(a - b) > tolerance
        if wrong:
            problems.append(f"token {token}: reference {golden.get(token)}, found {found.get(token)}")
    return problems


@pytest.mark.parametrize("model", MODELS)
def test_top_logits(pagoda, path_of, model):
    values = values_of(model)
    for prompt in values["prompts"]:
        options = (*numerics_options("f32", "bf16"), "--top-logits", TOP)
        result = pagoda.evaluate(path_of(model), tuple(prompt["ids"]), *options)
        assert result["tokens"] == len(prompt["ids"])
        problems = top_differences(
            prompt["top"], result["top_logits"], LOGIT_TOLERANCE[values["kv_format"]] * prompt["range"]
        )
        assert not problems, f"{model}, prompt {prompt['name']}, range {prompt['range']}:\n" + "\n".join(problems)


@pytest.mark.parametrize("arithmetic, kv_format", LOSS_TOLERANCE)
@pytest.mark.parametrize("model", MODELS)
def test_loss(pagoda, path_of, model, arithmetic, kv_format):
    golden = values_of(model)["text"]["nll"]
    result = pagoda.evaluate(path_of(model), text_ids(model), *numerics_options(arithmetic, kv_format))
    assert result["nll"] == pytest.approx(golden, rel=LOSS_TOLERANCE[arithmetic, kv_format])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("model", TINY)
def test_committed_hashes(pagoda, tiny_models, model, isa):
    """A hash that changed on purpose goes with a raised numerics revision: golden/update_hashes.py."""
    found = {}
    for arithmetic in ARITHMETICS:
        for kv_format in KV_FORMATS:
            options = (*numerics_options(arithmetic, kv_format), "--isa", isa)
            try:
                result = pagoda.evaluate(tiny_models[model], text_ids(model), *options)
            except IsaMissing as missing:
                pytest.skip(str(missing))
            found[f"{arithmetic}/{kv_format}"] = result["logits_hash"]
    assert found == committed_hashes().get(model), "not the committed hashes; golden/update_hashes.py writes them"


def test_generated_models_match_their_listing(tiny_models):
    assert set(tiny_models) == set(TINY)
