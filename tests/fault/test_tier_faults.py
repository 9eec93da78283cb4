"""What goes wrong with tiers, seen by clients: every answer stays that of a server without tiers, none is missing, and /v1/kv counts it."""

import random
import resource
import shlex
import shutil
import subprocess
import time
import types

import pytest
from fault.kill_rounds import TINY, Rounds, ask, client_of, make_prompts, tiers_of
from pagoda_process import Server, error_of
from redis_process import Redis

PROMPTS = make_prompts(TINY, 8)


@pytest.fixture(scope="module")
def llama(tiny_models):
    return tiny_models["tiny-llama"]


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


def answers(server, prompts=PROMPTS):
    """(texts, cached tokens) of the prompts, one after the other."""
    with client_of(server) as client:
        found = [ask(client, prompt) for prompt in prompts]
    return [a.choices[0].text for a in found], sum(a.usage.prompt_tokens_details.cached_tokens for a in found)


@pytest.fixture(scope="module")
def truth(server):
    return answers(server)[0]


def tier_when(server, is_so, seconds=30):
    """The only tier's account, as soon as it is so."""
    deadline = time.monotonic() + seconds
    while not is_so(tier := tiers_of(server)[0]):
        assert time.monotonic() < deadline, tier
        time.sleep(0.02)
    return tier


def stored(server):
    """The same, when all that was sealed is stored."""
    puts = []

    def is_still(tier):
        puts.append(tier["puts"])
        return len(puts) > 15 and puts[-15] == puts[-1] > 0

    return tier_when(server, is_still)


def on_disk(folder, size="16M"):
    return "--kv-memory", "8M", "--kv-disk", folder, "--kv-disk-size", size


def test_killed_at_random_moments(pagoda, llama, tmp_path):
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    rounds = Rounds(pagoda, llama, TINY, seed, tmp_path)
    try:
        for _ in range(5):
            rounds.round()
        rounds.last_round()
    finally:
        rounds.close()
    assert rounds.problems == []
    assert rounds.answered >= TINY.prompts
    assert sum(count for name, count in rounds.counts.items() if name.endswith("hits")) > 0, rounds.counts


def test_flipped_bits_in_files(start_server, llama, truth, tmp_path):
    first = start_server(llama, *on_disk(tmp_path / "kv"))
    assert answers(first)[0] == truth
    stored(first)
    assert first.stop() == 0
    for segment in (tmp_path / "kv").glob("*.seg"):
        data = bytearray(segment.read_bytes())
        for at in range(len(data) // 8, len(data), 499):
            data[at] ^= 1 << at % 8
        segment.write_bytes(data)
    second = start_server(llama, *on_disk(tmp_path / "kv"))
    assert answers(second)[0] == truth
    faults = tiers_of(second)[0]["faults"]
    assert faults.get("corrupt", 0) + faults.get("refused", 0) > 0


def test_flipped_bits_in_redis(start_server, llama, truth, redis):
    first = start_server(llama, "--kv-redis", redis.url)
    assert answers(first)[0] == truth
    stored(first)
    keys = redis.keys()
    for key in keys:
        value = bytearray(redis.command("GET", key))
        value[len(value) // 2] ^= 4
        redis.command("SET", key, bytes(value))
    second = start_server(llama, "--kv-redis", redis.url)
    assert answers(second)[0] == truth
    assert tiers_of(second)[0]["faults"]["corrupt"] > 0
    assert tiers_of(second)[0]["hits"] == 0


def test_a_file_size_limit(start_server, llama, truth, tmp_path):
    server = start_server(llama, *on_disk(tmp_path / "kv"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))  # less than a segment
    assert answers(server)[0] == truth
    tier = tier_when(server, lambda tier: tier["drops"])
    assert tier["drops"]["disk_full"] > 0 and tier["puts"] == 0


@pytest.fixture
def small_disk(pagoda, tmp_path):
    """(folder, a binary that sees 2 MB there): a tmpfs in a mount namespace of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {shlex.quote(str(folder))}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("this system allows no mount namespaces")
    script = tmp_path / "pagoda"
    script.write_text(f"#!/bin/sh\nexec unshare -rm sh -c '{mount} && exec \"$@\"' sh {shlex.quote(str(pagoda.binary))} \"$@\"\n")
    script.chmod(0o755)
    return folder, script


def test_a_full_disk(start_server, tiny_models, small_disk, tmp_path):
    folder, script = small_disk
    model, prompts = tiny_models["tiny-llama-mha"], make_prompts(TINY, 24)
    expected = answers(start_server(model), prompts)[0]
    server = Server(types.SimpleNamespace(binary=script), model, *on_disk(folder, "16M"), log_path=tmp_path / "small.log")
    try:
        assert answers(server, prompts)[0] == expected
        tier = tier_when(server, lambda tier: tier["drops"])
        assert tier["drops"]["disk_full"] > 0 and tier["puts"] > 0
    finally:
        code = server.stop()
    assert code == 0, server.log_end()


def test_a_budget_for_less_than_a_prompt(start_server, llama, truth, tmp_path):
    server = start_server(llama, *on_disk(tmp_path / "kv", size="256K"))
    assert answers(server)[0] == truth and answers(server)[0] == truth
    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.seg")) <= 256 << 10


def test_redis_dies_and_comes_back(start_server, llama, truth, redis):
    server = start_server(llama, "--kv-redis", redis.url)
    assert answers(server, PROMPTS[:4])[0] == truth[:4]
    stored(server)
    redis.stop()
    assert answers(server)[0] == truth
    tier = tier_when(server, lambda tier: tier["faults"].get("io", 0) > 0 or tier["drops"])
    n_puts = tier["puts"]
    redis.start()
    deadline, seed = time.monotonic() + 60, 2
    while tiers_of(server)[0]["puts"] == n_puts:  # until it is probed again, and somebody has something to store
        assert time.monotonic() < deadline
        answers(server, make_prompts(TINY, 1, seed))
        seed += 1
        time.sleep(0.05)


def test_redis_that_hangs(start_server, llama, truth, redis):
    first = start_server(llama, "--kv-redis", redis.url)
    assert answers(first)[0] == truth
    stored(first)
    second = start_server(llama, "--kv-redis", redis.url)
    redis.pause()
    begin = time.monotonic()
    assert answers(second)[0] == truth
    assert time.monotonic() - begin < 30
    tier = tier_when(second, lambda tier: tier["faults"])
    assert tier["faults"].get("timeout", 0) + tier["faults"].get("io", 0) > 0
    redis.resume()


def test_another_models_folder(start_server, tiny_models, llama, truth, tmp_path):
    first = start_server(llama, *on_disk(tmp_path / "kv"))
    assert answers(first)[0] == truth
    stored(first)
    assert first.stop() == 0
    shutil.copytree(tmp_path / "kv", tmp_path / "copy")
    with_tiers = start_server(tiny_models["tiny-qwen3"], *on_disk(tmp_path / "copy"))
    without = start_server(tiny_models["tiny-qwen3"])
    assert answers(with_tiers)[0] == answers(without)[0]
    assert tiers_of(with_tiers)[0]["hits"] == 0
    again = start_server(llama, *on_disk(tmp_path / "kv"))
    assert answers(again)[0] == truth
    assert tiers_of(again)[0]["hits"] > 0


def test_one_folder_for_two(pagoda, start_server, llama, tmp_path):
    start_server(llama, *on_disk(tmp_path / "kv"))
    second = pagoda.run("serve", llama, "--port", 0, *on_disk(tmp_path / "kv"), "--log-level", "error")
    assert f"{tmp_path / 'kv'} is in use by another process" in error_of(second, 2)
