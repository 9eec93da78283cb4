"""`pagoda bench` and `pagoda doctor` as a user meets them: tables, JSON, comparisons, wrong usage."""

import json
import re
import subprocess

import pytest
from pagoda_process import error_of, stdout_of

HASH = re.compile(r"[0-9a-f]{16}")


@pytest.fixture(scope="module")
def llama(tiny_models):
    return tiny_models["tiny-llama"]


@pytest.fixture(scope="module")
def result(pagoda, llama, tmp_path_factory):
    """(path, object) of one quick result."""
    path = tmp_path_factory.mktemp("bench") / "quick.json"
    table = stdout_of(pagoda.run("bench", llama, "--quick", "--json", path, "-t", 1))
    assert "prefill128" in table and "of it" in table and "Loss per token" in table
    return path, json.loads(path.read_text())


# ---- bench -----------------------------------------------------------------------------------------------------------


def test_quick_result(result):
    _, found = result
    assert found["schema"] == 1
    assert found["setup"]["model"] == "tiny-llama" and found["setup"]["threads"] == 1
    works = {line["work"]: line for line in found["results"]}
    assert {"prefill128", "prefill512", "decode", "decode512", "batch4", "shared4"} <= set(works)
    for line in works.values():
        assert line["unit"] == "tok/s" and len(line["runs"]) == 2
        assert line["low"] <= line["median"] <= line["high"]
        assert line["limit"] > 0 and line["gb_per_s"] > 0 and line["gops"] > 0
        assert line["bound"] in ("bandwidth", "operations")
        assert HASH.fullmatch(line["hash"]) and line["runs_agree"]
    assert works["prefill128"]["hash_of"] == "logprobs" and works["decode"]["hash_of"] == "tokens"
    accuracy = {line["arithmetic"]: line for line in found["accuracy"]}
    assert accuracy["f32"]["difference"] == 0
    assert accuracy["int8"]["within"] and abs(accuracy["int8"]["difference"]) < 0.01


def test_json_on_standard_output(pagoda, llama, result):
    done = pagoda.run("bench", llama, "--work", "decode,decode7k", "--repeat", 1, "--json", "-", "-t", 1)
    found = json.loads(stdout_of(done))
    assert done.stderr == ""  # no bar where nobody looks
    (line,) = found["results"]
    assert len(line["runs"]) == 1
    assert [left["work"] for left in found["left_out"]] == ["decode7k"] and "2048" in found["left_out"][0]["why"]
    assert found["accuracy"] == []


def test_nothing_measured_is_an_error(pagoda, llama):
    done = pagoda.run("bench", llama, "--work", "decode7k", "--repeat", 1, "-t", 1)
    assert done.returncode == 1 and "nothing was measured: decode7k" in done.stderr


def test_same_bits_on_every_isa_and_thread_count(pagoda, llama):
    def hashes(*options):
        done = pagoda.run("bench", llama, "--work", "prefill128,decode,batch4", "--repeat", 1, "--json", "-", *options)
        if "this CPU lacks" in done.stderr:
            return None
        return [line["hash"] for line in json.loads(stdout_of(done))["results"]]

    plain = hashes("-t", 1)
    for options in (("-t", 2), ("--isa", "ref"), ("--isa", "avx2"), ("--isa", "avx512")):
        assert hashes(*options) in (plain, None), options
    assert hashes("-t", 1, "--arithmetic", "f32")[0] != plain[0]


def test_compare(pagoda, llama, result, tmp_path):
    path, found = result
    faster = json.loads(path.read_text())
    for line in faster["results"]:
        line["runs"] = [10 * rate for rate in line["runs"]]
    faster["results"][0]["runs"] = found["results"][0]["runs"]
    faster["results"][1]["hash"] = "0" * 16
    faster["results"].pop()
    faster["setup"]["threads"] = 64
    other = tmp_path / "faster.json"
    other.write_text(json.dumps(faster))
    # A result stands for a model: nothing runs.
    table = stdout_of(pagoda.run("bench", other, "--compare", path))
    assert "differs: threads 1 and 64" in table
    lines = [line.split() for line in table.splitlines()]
    compared = {line[0]: line for line in lines[lines.index([]) :] if line and line[-1] in ("same", "other", "side")}
    assert compared["prefill128"][7] == "1.000" and "within noise" in " ".join(compared["prefill128"])
    assert compared["decode"][7:] == ["10.000", "faster", "same"]
    assert compared["prefill512"][-1] == "other"
    assert "only on one side" in " ".join(compared["shared4"])
    # And a new run beside an old one.
    table = stdout_of(pagoda.run("bench", llama, "--work", "decode", "--repeat", 1, "--compare", path, "-t", 1))
    assert "noise unknown: one run" in table


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--work", "fly"], "fly"),
        (["--work", "prefill0"], "prefill0"),
        (["--repeat", 0], "--repeat"),
        (["--json"], "--json"),
        (["--isa", "sse"], "--isa"),
        (["--kv-format", "q3"], "--kv-format"),
        (["--machine"], "--machine"),
    ],
)
def test_wrong_usage_of_bench(pagoda, llama, arguments, named):
    done = pagoda.run("bench", llama, *arguments)
    assert done.returncode == 2 and named in done.stderr and done.stdout == ""


def test_files_that_are_no_results(pagoda, llama, tmp_path):
    broken = tmp_path / "broken.json"
    for text in ("", "[1]", "{}", '{"schema": 1, "results": [{}]}', '{"schema": 99}'):
        broken.write_text(text)
        assert "broken.json" in error_of(pagoda.run("bench", llama, "--compare", broken), 1)
        assert "broken.json" in error_of(pagoda.run("bench", broken), 1)
    assert "nowhere.json" in error_of(pagoda.run("bench", llama, "--compare", tmp_path / "nowhere.json"), 1)
    assert "nowhere" in error_of(pagoda.run("bench", "nowhere"), 1)


def test_results_that_cannot_be_written(pagoda, llama, tmp_path):
    few = ("--work", "decode", "--repeat", 1, "-t", 1)
    done = pagoda.run("bench", llama, *few, "--json", tmp_path / "no" / "folder.json")
    assert done.returncode == 1 and "folder.json" in done.stderr
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            list(map(str, (pagoda.binary, "bench", llama, *few))), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1 and "cannot write the output" in done.stderr


# ---- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_says_what_it_can_do(pagoda):
    for arguments in (["doctor"], ["doctor", "--json"]):
        assert "--machine" in error_of(pagoda.run(*arguments), 2)
    assert pagoda.run("doctor", "a-model").returncode == 2


def test_doctor_of_the_machine(pagoda):
    text = stdout_of(pagoda.run("doctor", "--machine"))
    for word in ("CPU", "cores", "quota", "memory", "huge pages", "--isa auto", "GB/s", "GHz", "AMX", "fma"):
        assert word in text, word
    found = json.loads(stdout_of(pagoda.run("doctor", "--machine", "--json")))
    assert found["usable_cores"] >= 1 and found["memory_bytes"] > 0
    assert found["auto"]["isa"] == found["isas"][-1] and found["auto"]["isa_reason"]
    sizes = [line["bytes"] for line in found["bandwidth"]]
    assert sizes == sorted(sizes) and sizes[0] == 1 << 20
    assert all(line["one_thread_bytes_per_s"] > 0 and line["all_threads_bytes_per_s"] > 0 for line in found["bandwidth"])
    assert {line["isa"] for line in found["peaks"]} == set(found["isas"])
    assert all(line["one_thread_ops_per_s"] > 0 for line in found["peaks"])
    assert 1e8 < found["clock_hz"]["alone"] < 1e10
    assert found["amx_self_test"] in ("agrees with ref", "not on this machine")


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_stated_at_the_start(pagoda, llama):
    done = pagoda.run("run", llama, "hi", "-n", 2, "-v", "--kv-memory", "auto", "--raw")
    stdout_of(done)
    assert re.search(r"memory: [\d.]+ MiB of weights \+ [\d.]+ MiB of overhead \+ [\d.]+ MiB of KV", done.stderr), done.stderr
