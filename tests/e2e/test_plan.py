"""`pagoda plan` as a user meets it: public shapes and files, tables, JSON in bytes, plan against reality, wrong usage."""

import json
import re

import pytest
from pagoda_process import error_of, stdout_of

GIB = 1 << 30
GIVEN = ("--bandwidth", 50, "--ops", 500)  # nothing is measured, so that it takes no time


@pytest.fixture(scope="module")
def plan(pagoda):
    """plan(MODEL, *options) -> the JSON."""

    def ask(model, *options):
        return json.loads(stdout_of(pagoda.run("plan", model, "--json", *GIVEN, *options)))

    return ask


def formats(found):
    return {line["name"]: line for line in found["formats"]}


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_llama_2_7b_takes_one_gibibyte(pagoda, plan):
    f16 = formats(plan("llama-2-7b"))["f16"]
    assert f16["bytes_per_token"] == 2 * 32 * 32 * 128 * 2 == 524_288
    assert f16["sequence_bytes"] == 1_073_741_824
    text = stdout_of(pagoda.run("plan", "llama-2-7b", *GIVEN))
    (line,) = [line for line in text.splitlines() if line.startswith("f16 ")]
    assert "1073741824" in line and "1.07 GB" in line and re.search(r"\b1 GiB", line)


def test_llama_2_7b_at_32k_takes_sixteen(plan):
    assert formats(plan("llama-2-7b", "-c", 32768))["f16"]["sequence_bytes"] == 16 * GIB
    assert formats(plan("llama-2-7b", "--context", 32768))["f16"]["sequence_bytes"] == 16 * GIB


@pytest.mark.parametrize(
    "slug, bytes_per_token",
    [
        ("llama-2-13b", 819_200),
        ("llama-2-70b", 327_680),
        ("llama-3-8b", 131_072),
        ("llama-3-70b", 327_680),
        ("qwen2.5-0.5b", 12_288),
        ("qwen2.5-7b", 57_344),
        ("qwen2.5-72b", 327_680),
        ("mistral-7b", 131_072),
        ("smollm2-135m", 23_040),
        ("gemma-3-270m", 3_072),
        ("phi-3-mini-128k", 393_216),
    ],
)
def test_public_shapes(plan, slug, bytes_per_token):
    found = plan(slug)
    assert formats(found)["f16"]["bytes_per_token"] == bytes_per_token
    assert set(formats(found)) == {"f16", "bf16", "k16v8", "k8v16", "q8", "k16v4", "k8v4", "q4", "auto"}
    assert found["weight_bytes"] > 0 and found["source"].startswith("config.json of ")


def test_sharing_what_if(plan):
    kinds = {line["attention"]: line for line in plan("llama-2-70b")["sharing"]}
    assert [kinds[name]["kv_heads"] for name in ("MHA", "GQA", "MQA")] == [64, 8, 1]
    assert kinds["MHA"]["sequence_bytes"]["f16"] == 8 * kinds["GQA"]["sequence_bytes"]["f16"]
    assert [name for name, line in kinds.items() if line["is_this_model"]] == ["GQA"]


def test_what_fits(plan):
    found = plan("llama-3-8b", "--kv-memory", "4G", "--users", 8, "--kv-format", "f16", "--kv-disk-size", "100G")
    assert found["kv_memory_bytes"] == 4 * GIB
    (users,) = found["users"]
    assert users == {"users": 8, "largest_context_tokens": 4096, "memory_tokens": 4096}
    assert found["largest_users"] == 16  # of 2,048 tokens, 256 MiB each
    table = {row["context_tokens"]: {cell["batch"]: cell for cell in row["batches"]} for row in found["table"]}
    assert table[2048][16] == {"batch": 16, "bytes": 4 * GIB, "fits": True}
    assert table[2048][32] == {"batch": 32, "bytes": 8 * GIB, "fits": False}
    assert formats(found)["f16"]["disk_tokens"] == 100 * GIB // 131_072
    assert formats(found)["f16"]["memory_tokens"] == 4 * GIB // 131_072


def test_memory_covers_weights_and_overhead(plan):
    found = plan("llama-2-7b", "--memory", "8G")
    assert found["weight_bytes"] + found["overhead_bytes"] + found["kv_memory_bytes"] == 8 * GIB
    assert plan("llama-2-7b", "--memory", "64G", "--weights", "f16")["weight_bytes"] > 2 * 6_738_000_000


def test_traffic_is_no_overhead(pagoda):
    """What many requests at once and clients take, and only then, stands beside what is resident."""
    text = stdout_of(pagoda.run("plan", "llama-2-7b", "--memory", "24G", *GIVEN))
    resident, beside = text[text.index("\nmemory: ") + 1 :].splitlines()[:2]
    assert re.fullmatch(r"memory: .* of weights \+ [\d.]+ MB of overhead \+ [\d.]+ GB of KV", resident), resident
    at_once = r"  \+ [\d.]+ MB while \d+ sequences sample at once \+ 1.07 GB of clients' requests and unread answers: at most, as they come"
    assert re.fullmatch(at_once, beside), beside


def test_tokens_agree_with_sequences_and_users(plan):
    found = plan("llama-3-8b", "--memory", "16G", "--users", 8)
    q8 = formats(found)["q8"]
    assert q8["memory_tokens"] // 2048 == q8["memory_sequences"] == found["largest_users"]
    assert q8["memory_tokens"] >= 8 * found["users"][0]["memory_tokens"]


def test_bounds_and_generation(plan):
    found = plan("llama-2-7b", "--kv-format", "f16")
    assert found["rates"]["source"] == "given"
    decode = next(bound for bound in found["bounds"] if bound["work"] == "decode")
    assert decode["bound"] == "bandwidth" and decode["tokens_per_s"] == pytest.approx(50e9 / decode["bytes"], rel=1e-4)
    last = found["generation"][-1]
    n, d = last["tokens"], 4096
    assert last["uncached"]["textbook"] == n**2 * d**2 + n**3 * d
    assert last["cached"]["textbook"] == n * d**2 + n**2 * d
    assert last["uncached"]["weight_ops"] > n / 4 * last["cached"]["weight_ops"]
    assert last["uncached"]["least_s"] > last["cached"]["least_s"] > 0


def test_bounds_are_measured_when_not_given(pagoda):
    found = json.loads(stdout_of(pagoda.run("plan", "smollm2-135m", "--json")))
    assert found["rates"]["source"] == "measured here" and found["rates"]["bytes_per_s"] > 1e8
    assert all(bound["tokens_per_s"] > 0 for bound in found["bounds"])


def test_text(pagoda):
    text = stdout_of(pagoda.run("plan", "gemma-3-1b", *GIVEN, "--memory", "4G", "--kv-disk-size", "10G"))
    for word in ("MQA", "window of 512", "k16v4", "on disk", "users at once", "tok/s", "N2D2+N3D", "+---"):
        assert word in text, word
    assert "too little" not in text
    little = pagoda.run("plan", "gemma-3-1b", *GIVEN, "--memory", "100M")
    assert little.returncode == 2 and "too little" in little.stdout
    assert max(map(len, text.splitlines())) <= 130


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen2", "tiny-gemma3"])
def test_plan_is_reality(pagoda, tiny_models, model):
    found = json.loads(stdout_of(pagoda.run("plan", tiny_models[model], "--verify", "--json", *GIVEN, "-t", 1)))
    figures = {line["what"]: line for line in found["verified"]}
    assert figures["weights"]["measured_bytes"] == found["weight_bytes"]
    assert figures["KV per token"]["measured_bytes"] == formats(found)["auto"]["bytes_per_token"]
    assert all(line["agrees"] for line in figures.values()) and "resident memory" in figures


def test_measured_beside_the_cost_model(pagoda, tiny_models):
    done = pagoda.run("plan", tiny_models["tiny-llama"], "--measure", "--json", *GIVEN, "-t", 1)
    found = json.loads(stdout_of(done))
    assert found["measured"] and all(line["same_tokens"] for line in found["measured"])
    assert {line["tokens"] for line in found["measured"]} <= {line["tokens"] for line in found["generation"]}


def test_inspect_and_plan_agree(pagoda, tiny_models, plan):
    """Of every value of --kv-format what it gives: with the K bias of Qwen2.5, k8v4 and q4 are k16v4."""
    for model in ("tiny-llama", "tiny-qwen2", "tiny-gemma3"):
        inspected = json.loads(stdout_of(pagoda.run("inspect", tiny_models[model], "--json")))
        planned = formats(plan(tiny_models[model], "-c", inspected["context_length"]))
        assert set(inspected["kv"]) == set(planned) - {"f16"}
        for name, footprint in inspected["kv"].items():
            for figure in ("note", "bytes_per_token", "window_bytes_per_token"):
                assert planned[name][figure] == footprint[figure], (model, name)
            assert planned[name]["sequence_bytes"] == footprint["bytes_per_context"], (model, name)
        if model == "tiny-qwen2":
            assert inspected["kv"]["q4"] == inspected["kv"]["k8v4"] == {**inspected["kv"]["k16v4"], "note": "as k16v4"}
        text = stdout_of(pagoda.run("inspect", tiny_models[model]))
        assert re.search(r"^KV cache +auto +\d+ B per token", text, re.MULTILINE) and " k8v16 " in text


# ---- wrong usage -----------------------------------------------------------------------------------------------------


def test_unknown_names_list_near_ones(pagoda):
    message = error_of(pagoda.run("plan", "llama-2-8b", *GIVEN), 1)
    assert "llama-2-8b" in message and "llama-2-7b" in message
    assert "nowhere/model.gguf" in error_of(pagoda.run("plan", "nowhere/model.gguf"), 1)


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["llama-2-7b", "--memory", "lots"], "--memory"),
        (["llama-2-7b", "--kv-memory", "some"], "--kv-memory"),
        (["llama-2-7b", "--kv-disk-size", "big"], "--kv-disk-size"),
        (["llama-2-7b", "--kv-disk-size", "auto"], '"auto" is not a size'),
        (["llama-2-7b", "--weights", "q9"], "--weights"),
        (["llama-2-7b", "--verify"], "--verify"),
        (["llama-2-7b", "--measure"], "--measure"),
        (["llama-2-7b", "--kv-format", "q3"], "--kv-format"),
        (["llama-2-7b", "--users", "0"], "--users"),
        (["llama-2-7b", "--bandwidth", "0"], "--bandwidth"),
        (["llama-2-7b", "-c", "0"], "--ctx-size"),
        (["MODEL", "--weights", "f16"], "--weights"),
        (["MODEL", "--verify", "--kv-format", "f16"], "--verify"),
        ([], "model"),
    ],
)
def test_wrong_usage(pagoda, tiny_models, arguments, named):
    done = pagoda.run("plan", *[tiny_models["tiny-llama"] if a == "MODEL" else a for a in arguments])
    assert done.returncode == 2 and named in done.stderr and done.stdout == "", done.stderr
