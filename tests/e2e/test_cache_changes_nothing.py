"""Promise 1 through the whole server: with hits, copies, common beginnings, evictions, preemption, a disk, a Redis and a restart, answers and
their log-probabilities are those of a server that computes everything. The engine's own equality tests look at every bit of every row."""

import concurrent.futures
import json
import random

import pytest
from golden_values import REAL
from perf.small_budget import bytes_per_token
from redis_process import Redis

GENERATED, LIKELIEST = 12, 5
BASE_TOKENS = 700  # more than two spans of attention, and more than Gemma 3's window


def make_prompts(most):
    """One prompt, its next turn, and branches at a block's boundary, inside a block, and near its end. `most`: ids are below."""
    rng = random.Random(11)
    base = [rng.randrange(10, most) for _ in range(BASE_TOKENS)]
    more = [[rng.randrange(10, most) for _ in range(40)] for _ in range(5)]
    return [base, base + more[0], base[:320] + more[1], base[:333] + more[2], base[:-3] + more[3], base + more[0] + more[4]]


def ask(server, prompt):
    """(cached tokens, what the answer says of its tokens, every digit)"""
    body = {"prompt": prompt, "max_tokens": GENERATED, "temperature": 0, "ignore_eos": True, "logprobs": LIKELIEST}
    status, text = server.post("/v1/completions", body)
    assert status == 200, text
    answer = json.loads(text)
    choice = answer["choices"][0]
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], (choice["text"], choice["logprobs"])


def ask_at_once(server, prompts):
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt), prompts))


def tiers_of(server):
    return {tier["tier"]: tier for tier in json.loads(server.get("/v1/kv")[1])["tiers"]}


CASES = [("tiny-llama", "auto"), ("tiny-gemma3", "bf16")] + [
    pytest.param(model, kv_format, marks=pytest.mark.full) for model in REAL for kv_format in ("auto", "q8", "bf16")
]


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


@pytest.mark.parametrize("model,kv_format", CASES)
def test_same_answers(start_server, tiny_models, redis, tmp_path, request, model, kv_format):
    is_tiny = model in tiny_models
    path = tiny_models[model] if is_tiny else request.getfixturevalue("real_model")(model)
    prompts = make_prompts(250 if is_tiny else 30_000)
    plain = start_server(path, "--kv-format", kv_format, "--prefix-cache", "off")
    expected = [ask(plain, prompt)[1] for prompt in prompts]
    # Room for two of them: the others wait, take each other's blocks, and evict.
    budget = max(4 << 20 if is_tiny else 26 << 20, int(2.2 * (BASE_TOKENS + 100) * bytes_per_token(plain)))
    assert plain.stop() == 0
    options = ["--kv-format", kv_format, "--kv-memory", budget]
    disk = ["--kv-disk", tmp_path / "kv", "--kv-disk-size", "1G"]

    def same(found):
        assert [what for _, what in found] == expected
        return sum(cached for cached, _ in found)

    first = start_server(path, *options, *disk, "--kv-redis", redis.url)
    same(ask_at_once(first, prompts))
    assert same([ask(first, prompt) for prompt in prompts]) > BASE_TOKENS
    assert first.stop() == 0
    for tier, where in (("disk", disk), ("redis", ["--kv-redis", redis.url])):
        again = start_server(path, *options, *where)
        assert same(ask_at_once(again, prompts)) > 0
        assert tiers_of(again)[tier]["restored_tokens"] > 0, tiers_of(again)
        assert same([ask(again, prompt) for prompt in reversed(prompts)][::-1]) > BASE_TOKENS
        assert again.stop() == 0
