"""A memory limit as a small machine meets it: what is chosen, that it is kept, that what is printed is what is resident, and what is refused."""

import concurrent.futures
import json
import re

import pytest
from pagoda_process import Server, error_of

MIB = 1 << 20
STATEMENT = re.compile(
    r"memory: ([\d.]+) MiB of weights \+ ([\d.]+) MiB of overhead \+ ([\d.]+) MiB of KV = ([\d.]+) MiB resident at most, "
    r"and up to ([\d.]+) MiB more"
)
CHOICE = re.compile(r"memory limit of ([\d.]+) MiB \(--memory\): context (\d+) of (\d+) tokens, KV as (\w+), steps of (\d+) rows \(\d+ while no stream waits\); (.*)")


def resident_mib(server, key):
    """VmRSS or VmHWM (the most there ever was) of the served process."""
    with open(f"/proc/{server.pid}/status") as status:
        return int(re.search(rf"{key}:\s+(\d+) kB", status.read()).group(1)) / 1024


def complete(server, n_tokens, seed=13, **fields):
    prompt = [(i * 7919 + seed) % 200 + 20 for i in range(n_tokens)]
    status, text = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})
    assert status == 200, text
    return json.loads(text)


@pytest.fixture(scope="module")
def small_machine(pagoda, real_model, tmp_path_factory):
    """SmolLM2 within 256 MiB, after a prompt as long as its context."""
    server = Server(pagoda, real_model("smollm2"), "--memory", "256M", log_path=tmp_path_factory.mktemp("memory") / "log")
    assert complete(server, 8180)["usage"]["prompt_tokens"] == 8180
    complete(server, 800, seed=14)  # what the first one left of the budget
    yield server
    assert server.stop() == 0


def test_a_whole_8k_context_within_256_mib(small_machine):
    assert resident_mib(small_machine, "VmHWM") <= 256
    limit, context, trained, kv_format, step, _ = CHOICE.search(small_machine.log_path.read_text()).groups()
    assert (limit, context, trained, kv_format, step) == ("256.0", "8192", "8192", "q8", "256")


def test_what_is_printed_is_resident(small_machine):
    """Within 3 % of weights + KV + overhead, once the KV is in use; and the overhead is what it may be."""
    weights, overhead, kv, whole, burst = map(float, STATEMENT.search(small_machine.log_path.read_text()).groups())
    assert weights + overhead + kv == pytest.approx(whole, abs=0.2) and whole + burst <= 256.05
    assert resident_mib(small_machine, "VmRSS") == pytest.approx(whole, rel=0.03)
    assert overhead + burst <= 64 + 400 * 49152 / MIB


def test_plan_and_server_agree(pagoda, real_model, small_machine):
    done = pagoda.run("plan", real_model("smollm2"), "--memory", "256M", "--json", "--bandwidth", 50, "--ops", 500)
    found = json.loads(done.stdout)
    weights, overhead, kv, _, burst = map(float, STATEMENT.search(small_machine.log_path.read_text()).groups())
    serves = found["serves"]
    assert found["kv_memory_bytes"] / MIB == pytest.approx(kv, abs=0.06)
    assert found["weight_bytes"] / MIB == pytest.approx(weights, abs=0.06)
    assert serves["resident_overhead_bytes"] / MIB == pytest.approx(overhead, abs=0.06)
    assert serves["burst_bytes"] / MIB == pytest.approx(burst, abs=0.06)
    assert serves["fits"] and serves["context_tokens"] == 8192 and found["short_bytes"] == 0


def test_the_smallest_limit_serves_and_is_kept(pagoda, tiny_models, tmp_path):
    model = tiny_models["tiny-llama"]
    line = error_of(pagoda.run("serve", model, "--memory", "1M"), 2)
    assert line.endswith("(--memory)") and "weights take" in line
    least = int(re.search(r"at least (\d+) bytes", line).group(1))
    assert "too little" in error_of(pagoda.run("serve", model, "--memory", least - 1), 2)
    server = Server(pagoda, model, "--memory", least, log_path=tmp_path / "log")
    try:
        context = int(CHOICE.search(server.log_path.read_text()).group(2))
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda seed: complete(server, context - 8, seed, temperature=1.5, logprobs=2), range(64)))
        assert resident_mib(server, "VmHWM") <= least / MIB
    finally:
        server.stop()


def test_a_context_that_was_asked_for_and_is_cut_is_a_warning(pagoda, tiny_models):
    run = ["run", tiny_models["tiny-llama"], "hi", "-n", 2]
    for options in (["--kv-memory", "2M"], []):
        done = pagoda.run(*run, "-c", 1 << 20, *options)
        assert done.returncode == 0
        said = re.search(r"context of 1048576 tokens asked for, serving (\d+): the model was trained for (\d+)(.*)", done.stderr)
        assert said, done.stderr
        cut = f", and --kv-memory of 2.0 MiB holds {said.group(1)}" if options else ""
        assert said.group(3) == cut and (int(said.group(1)) < int(said.group(2))) == bool(cut)
    assert "asked for" not in pagoda.run(*run, "--kv-memory", "2M").stderr


def test_a_kv_memory_that_is_too_little_names_the_extents(pagoda, tiny_models):
    line = error_of(pagoda.run("run", tiny_models["tiny-llama"], "hi", "--kv-memory", "1K"), 1)
    extent = int(re.search(r"taken in extents of (\d+) bytes", line).group(1))
    assert all(int(n) % extent == 0 for n in re.findall(r"tokens(?: of this model takes)? (\d+)", line))


def test_a_larger_limit_gives_what_was_said(pagoda, tiny_models, tmp_path):
    model = tiny_models["tiny-llama"]
    least = int(re.search(r"at least (\d+) bytes", error_of(pagoda.run("run", model, "hi", "--memory", "1M"), 2)).group(1))
    done = pagoda.run("run", model, "hi", "-n", 2, "--memory", least, "-v")
    said = re.search(r"from ([\d.]+) MiB on nothing is cut", done.stderr)
    assert done.returncode == 0 and said, done.stderr
    done = pagoda.run("run", model, "hi", "-n", 2, "--memory", f"{said.group(1)}M", "-v")
    limit, context, wanted, *_ = CHOICE.search(done.stderr).groups()
    assert context == wanted and "hold another" in done.stderr


def test_plan_refuses_what_does_not_fit(pagoda):
    done = pagoda.run("plan", "llama-2-7b", "--memory", "1G", "--bandwidth", 50, "--ops", 500, "--json")
    found = json.loads(done.stdout)
    assert found["short_bytes"] == found["serves"]["least_memory_bytes"] - 1024**3 and not found["serves"]["fits"]
    done = pagoda.run("plan", "llama-2-7b", "--memory", "1G", "--bandwidth", 50, "--ops", 500)
    assert done.returncode == 2 and "too little" in done.stdout and "--memory" in done.stderr
    assert pagoda.run("plan", "llama-2-7b", "--memory", "8G", "--bandwidth", 50, "--ops", 500).returncode == 0
