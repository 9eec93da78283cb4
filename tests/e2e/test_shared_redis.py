"""Servers that name one Redis: what one computed is a hit on the other, and stays apart where it should."""

import json
import time

import openai
import pytest
from redis_process import Redis

PROMPT = [5 + i * 7 % 200 for i in range(100)]
STORED_BLOCKS = 3  # whole ones


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


@pytest.fixture
def start(start_server, tiny_models, redis, tmp_path):
    return lambda secret: start_server(tiny_models["tiny-llama"], "--kv-redis", redis.url, "--kv-secret", tmp_path / secret)


def ask(server, **extra):
    """(text, cached tokens, tokens by tier) of the prompt."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        answer = client.completions.create(model="m", prompt=PROMPT, max_tokens=8, temperature=0, extra_body=extra)
    status, body = server.get(f"/v1/requests/{answer.id}/cache")
    assert status == 200, body
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens, json.loads(body)["reused_by_tier"]


def wait_for_values(redis, n):
    deadline = time.monotonic() + 30
    while len(redis.keys()) < n:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_prefix_of_one_is_a_hit_on_the_other(start, redis):
    first, second = start("secret"), start("secret")
    text, cached, _ = ask(first)
    assert cached == 0
    wait_for_values(redis, STORED_BLOCKS)
    assert ask(second) == (text, 96, {"ram": 0, "redis": 96})
    assert ask(second) == (text, 96, {"ram": 96, "redis": 0})


def test_salts_and_secrets_keep_apart(start, redis):
    first, second, stranger = start("secret"), start("secret"), start("another")
    text, cached, _ = ask(first, cache_salt="mine")
    assert cached == 0
    wait_for_values(redis, STORED_BLOCKS)
    assert ask(second, cache_salt="mine")[:2] == (text, 96)  # first of all: once a tiny model's speed is known, Redis is not waited for
    assert ask(stranger, cache_salt="mine")[:2] == (text, 0)
    assert ask(stranger, cache_salt="other")[:2] == (text, 0)
    assert ask(second, cache_salt="other")[:2] == (text, 0)
    assert ask(second)[:2] == (text, 0)
