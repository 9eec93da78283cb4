"""Keys, tenants and their limits through the real client: who is let in, who sees what, and that no key is ever logged."""

import concurrent.futures
import hashlib
import json
import os
import random
import statistics
import time
import urllib.error
import urllib.request

import openai
import pytest
from pagoda_process import error_of, stdout_of

PROMPT = [5 + i * 7 % 200 for i in range(100)]
WAIT_SECONDS = 60


def key(name):
    return f"key-of-{name}-{hashlib.md5(name.encode()).hexdigest()}"


def entry(name, **fields):
    return {"name": name, "keys": [hashlib.sha256(key(name).encode()).hexdigest()]} | fields


def write_text(path, text):
    """As an administrator would: beside it, then renamed."""
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)


def write(path, *entries):
    write_text(path, json.dumps({"tenants": list(entries)}, indent=1))


@pytest.fixture
def tenants(start_server, tiny_models, tmp_path):
    """tenants(entry, ...) -> server of tiny-llama; its log must hold no key when the test ends."""
    servers, path = [], tmp_path / "keys.json"

    def start(*entries, model=None, options=()):
        write(path, *entries)
        server = start_server(model or tiny_models["tiny-llama"], "--api-keys", path, "--log-level", "debug", *options)
        server.key_path = path
        servers.append((server, [one["name"] for one in entries]))
        return server

    yield start
    for server, names in servers:
        assert server.stop() == 0, server.log_end()
        log = server.log_path.read_text(errors="replace")
        assert "keys: " in log
        for name in [*names, "nobody", "new"]:
            assert key(name) not in log and hashlib.sha256(key(name).encode()).hexdigest() not in log
        assert "key-of-" not in log


def client_of(server, name):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key(name), max_retries=0, timeout=600)


def ask(server, name, prompt=PROMPT, n=2, **options):
    with client_of(server, name) as client:
        return client.completions.create(model="tiny-llama", prompt=prompt, max_tokens=n, temperature=0, **options)


def cached(server, name, prompt=PROMPT, **extra):
    return ask(server, name, prompt, extra_body=extra).usage.prompt_tokens_details.cached_tokens


def call(server, path, headers=None, method="GET", body=None):
    """(status, headers, body text); errors are answers too."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(server.url + path, data, headers or {}, method=method), timeout=60
        ) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def bearer(name):
    return {"Authorization": f"Bearer {key(name)}"}


def eventually(is_true):
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_is_let_in(tenants):
    server = tenants(entry("alice"), entry("boss", admin=True), entry("poor", models=["another"]))
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(server, "nobody")
    assert refused.value.code == "invalid_api_key" and refused.value.type == "authentication_error"
    assert refused.value.response.headers["www-authenticate"] == "Bearer" and key("nobody") not in refused.value.message
    assert ask(server, "alice").usage.completion_tokens == 2
    assert call(server, "/v1/models", {"x-api-key": key("alice")})[0] == 200
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(server, "poor")
    assert refused.value.type == "permission_error" and refused.value.param == "model"
    with client_of(server, "poor") as client:
        assert client.models.list().data == []
    for path in ("/v1/kv", "/v1/kv/blocks", "/v1/engine"):
        assert [call(server, path, bearer(name))[0] for name in ("boss", "alice", "nobody")] == [200, 403, 401]
    for path in ("/", "/health", "/ping", "/version"):
        assert call(server, path)[0] == 200


def test_keys_are_reloaded_while_serving(tenants):
    server = tenants(entry("alice"), entry("bob"))
    with client_of(server, "bob") as client:
        stream = client.completions.create(model="m", prompt=PROMPT, max_tokens=100, temperature=0, stream=True)
        chunks = iter(stream)
        next(chunks)
        write(server.key_path, entry("alice"), entry("new"))
        eventually(lambda: call(server, "/v1/models", bearer("new"))[0] == 200)
        with pytest.raises(openai.AuthenticationError):
            ask(server, "bob")
        assert list(chunks)[-1].choices[0].finish_reason == "length"  # what runs goes on
    write_text(server.key_path, '{"tenants": [{"name": "eve", "keys": ["' + key("new") + '"]}]}')
    eventually(lambda: "tenants[0].keys[0]" in server.log_path.read_text())
    assert ask(server, "alice") and ask(server, "new")
    write(server.key_path, entry("new"))
    eventually(lambda: call(server, "/v1/models", bearer("alice"))[0] == 401)
    assert server.log_path.read_text().count("the keys stay as they are") == 1


def test_limits(tenants):
    server = tenants(
        entry("slow", max_concurrent=1),
        entry("thrifty", tokens_per_minute=120),
        entry("short", context_tokens=64),
        entry("small", kv_bytes=100),
    )
    refusals = []

    def one(_):
        try:
            ask(server, "slow", n=150)
        except openai.RateLimitError as error:
            refusals.append(error)

    def burst():
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        return refusals

    eventually(burst)  # two of them meet
    assert int(refusals[0].response.headers["retry-after"]) >= 1 and refusals[0].code == "rate_limit_exceeded"
    assert ask(server, "slow")
    assert ask(server, "thrifty")  # 102 tokens of 120
    assert ask(server, "thrifty", PROMPT[:10])
    with pytest.raises(openai.RateLimitError) as refused:
        ask(server, "thrifty", PROMPT[::-1])
    assert 30 <= int(refused.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, "short")
    assert refused.value.code == "context_length_exceeded" and "100 tokens" in refused.value.message
    assert "64" in refused.value.message
    assert ask(server, "short", PROMPT[:60], n=100).usage.completion_tokens == 4
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, "small")
    assert "100" in refused.value.message and refused.value.param == "max_tokens"


def test_a_tenants_cache_is_its_own(tenants):
    server = tenants(entry("alice"), entry("bob"), entry("carol", cache_space="team"), entry("dave", cache_space="team"))
    assert [cached(server, name) for name in ("alice", "bob", "alice", "bob")] == [0, 0, 96, 96]
    assert [cached(server, name) for name in ("carol", "dave", "carol")] == [0, 96, 96]
    assert [cached(server, name, cache_salt="s") for name in ("carol", "dave", "alice", "alice")] == [0, 96, 0, 96]
    assert cached(server, "bob", cache_salt="team") == 0


def test_reports_and_sessions_are_their_tenants_own(tenants):
    server = tenants(entry("alice"), entry("carol", cache_space="team"), entry("dave", cache_space="team"))
    answer = ask(server, "alice")
    path = f"/v1/requests/{answer.id}/cache"
    assert [call(server, path, bearer(name))[0] for name in ("alice", "carol")] == [200, 404]
    for name in ("alice", "carol"):
        ask(server, name, extra_body={"session_id": "chat"})
    assert [call(server, "/v1/sessions/chat", bearer(name))[0] for name in ("alice", "carol", "dave")] == [200, 200, 404]
    listed = {name: json.loads(call(server, "/v1/sessions", bearer(name))[2])["data"] for name in ("alice", "carol", "dave")}
    assert [len(listed[name]) for name in ("alice", "carol", "dave")] == [1, 1, 0]
    assert listed["carol"][0]["id"] == "chat"
    status, _, missing = call(server, "/v1/sessions/none", bearer("carol"))
    assert status == 404 and "session none" in missing
    assert call(server, "/v1/sessions/chat", bearer("dave"), "DELETE")[0] == 404
    status, _, forked = call(server, "/v1/sessions/chat/fork", bearer("carol"), "POST", {"session_id": "copy"})
    assert status == 201 and json.loads(forked)["id"] == "copy"
    assert call(server, "/v1/sessions/copy", bearer("carol"), "DELETE")[0] == 204


def test_many_requests_of_one_key_at_once(tenants):
    server = tenants(entry("alice", max_concurrent=4), entry("bob"))

    def one(name):
        try:
            return ask(server, name, n=20).usage.completion_tokens
        except openai.RateLimitError as error:
            return int(error.response.headers["retry-after"])

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        told = list(pool.map(one, ["alice"] * 24 + ["bob"] * 12))
    assert told[24:] == [20] * 12 and 20 in told[:24] and all(n == 20 or n >= 1 for n in told[:24])
    eventually(lambda: one("alice") == 20)


def test_one_key_from_the_environment(start_server, tiny_models, monkeypatch):
    monkeypatch.setenv("PAGODA_API_KEY", key("owner"))
    server = start_server(tiny_models["tiny-llama"])
    assert [call(server, "/v1/engine", headers)[0] for headers in ({}, bearer("owner"))] == [401, 200]
    assert [cached(server, "owner") for _ in range(2)] == [0, 96]
    assert server.stop() == 0 and key("owner") not in server.log_path.read_text()


def test_an_open_server_must_be_asked_for(pagoda, tiny_models, tmp_path):
    said = error_of(pagoda.run("serve", tiny_models["tiny-llama"], "--host", "0.0.0.0"), 2)
    assert "--api-key" in said and "--no-auth" in said and "--host" in said
    assert "--api-key" in error_of(pagoda.run("serve", tiny_models["tiny-llama"], "--api-key", ""), 2)
    bad = tmp_path / "bad.json"
    bad.write_text('{"tenants": [{"name": "a", "keys": [], "weight": 0}]}')
    assert "tenants[0].weight" in error_of(pagoda.run("serve", tiny_models["tiny-llama"], "--api-keys", bad), 2)


def test_a_key_is_made(pagoda, tenants):
    made = json.loads(stdout_of(pagoda.run("key", "alice", "--json")))
    assert made["entry"] == {"name": "alice", "keys": [hashlib.sha256(made["key"].encode()).hexdigest()]}
    assert len(made["key"]) == 4 + 64
    lines = stdout_of(pagoda.run("key", "alice")).splitlines()
    assert lines[0].startswith("pgd-") and lines[0] != made["key"] and json.loads(lines[-1])["name"] == "alice"
    server = tenants(made["entry"])
    assert call(server, "/v1/models", {"Authorization": f"Bearer {made['key']}"})[0] == 200
    with pytest.raises(openai.AuthenticationError):
        ask(server, "alice")
    assert made["key"] not in server.log_path.read_text()


def first_token_seconds(server, name, prompt):
    with client_of(server, name) as client:
        begin = time.perf_counter()
        stream = client.completions.create(model="m", prompt=prompt, max_tokens=1, temperature=0, stream=True)
        for chunk in stream:
            if chunk.choices:
                return time.perf_counter() - begin
    raise AssertionError("no token came")


def test_times_tell_nothing_of_another_tenants_cache(tenants, real_model):
    """What alice has warmed takes bob as long as what nobody has, while for alice it is many times faster."""
    server = tenants(entry("alice"), entry("bob"), model=real_model("smollm2"), options=("--ctx-size", "1024"))
    source = random.Random(5)
    n_pairs, times = 5, {"cold": [], "warm": [], "seen": [], "unseen": []}
    for pair in range(n_pairs + 1):
        seen, unseen = ([source.randrange(1000, 40000) for _ in range(513)] for _ in range(2))
        one = {"cold": first_token_seconds(server, "alice", seen), "warm": first_token_seconds(server, "alice", seen)}
        asked = [("seen", seen), ("unseen", unseen)]
        for what, prompt in asked if pair % 2 else asked[::-1]:
            one[what] = first_token_seconds(server, "bob", prompt)
        for what, seconds in one.items() if pair > 0 else ():  # the first pages the model in
            times[what].append(seconds)
    middle = {what: statistics.median(seconds) for what, seconds in times.items()}
    print({what: f"{seconds * 1000:.0f} ms" for what, seconds in middle.items()})
    assert middle["warm"] < 0.5 * middle["cold"], times
    assert middle["seen"] > 2 * middle["warm"], times
    ratio = statistics.median(a / b for a, b in zip(times["seen"], times["unseen"], strict=True))
    assert 0.67 < ratio < 1.5, times
