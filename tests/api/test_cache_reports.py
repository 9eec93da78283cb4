"""What the server tells of its KV cache: usage, the header, reports by id, the account, the block map. One server of a tiny model each."""

import json
import threading

import openai
import pytest

PROMPT = [5 + i * 7 % 200 for i in range(100)]


@pytest.fixture
def kv_server(start_server, tiny_models):
    return start_server(tiny_models["tiny-llama"], "--kv-memory", "8M")


@pytest.fixture
def client(kv_server):
    with openai.OpenAI(base_url=f"{kv_server.url}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


def ask(client, prompt, **extra):
    """(answer, header) of one greedy completion of token ids."""
    raw = client.completions.with_raw_response.create(model="m", prompt=prompt, max_tokens=4, temperature=0, extra_body=extra)
    return raw.parse(), raw.headers.get("x-pagoda-cache")


def get(server, path):
    status, body = server.get(path)
    assert status == 200, body
    return json.loads(body)


def report(server, answer):
    return get(server, f"/v1/requests/{answer.id}/cache")


def test_usage_header_and_report_agree(client, kv_server):
    cold, header = ask(client, PROMPT)
    assert header == "reused=0 copied=0 computed=100 miss=cold"
    changed = PROMPT[:70] + [9 if PROMPT[70] != 9 else 10] + PROMPT[71:]
    answer, header = ask(client, changed)
    assert answer.usage.prompt_tokens_details.cached_tokens == 70
    assert header == "reused=70 copied=6 computed=30 miss=cold"
    told = report(kv_server, answer)
    assert told["reused_tokens"] == 70 and told["reused_by_tier"] == {"ram": 70} and told["copied_tokens"] == 6
    (prompt,) = told["prompts"]
    differing = prompt["first_differing_token"]
    assert differing["index"] == 70
    assert differing["token"]["id"] == changed[70] and differing["token"]["text"]
    assert differing["cached"]["id"] == PROMPT[70] and differing["cached"]["text"]
    assert prompt["misses"] == [{"index": 70, "reason": "cold"}]
    assert report(kv_server, cold)["prompts"][0]["first_differing_token"]["cached"] is None


def test_namespaces_are_told_nothing_of_each_other(client, kv_server):
    salted, _ = ask(client, PROMPT, cache_salt="theirs")
    for salt in ("mine", None):
        answer, header = ask(client, PROMPT, **({"cache_salt": salt} if salt else {}))
        assert header == "reused=0 copied=0 computed=100 miss=cold"
        assert report(kv_server, answer)["prompts"][0]["first_differing_token"]["cached"] is None
    answer, header = ask(client, PROMPT, cache_salt="another")
    assert header.endswith("miss=namespace")  # the open namespace has it by now, and anybody may ask there
    assert report(kv_server, salted)["prompt_tokens"] == 100


def test_streams_tell_it_in_a_comment(client, kv_server):
    ask(client, PROMPT)
    status, body = kv_server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "stream": True})
    assert status == 200
    frames = [frame for frame in body.split("\n\n") if frame]
    assert frames[-2] == ": x-pagoda-cache reused=96 copied=0 computed=4 miss=cold" and frames[-1] == "data: [DONE]"
    chunks = list(client.completions.create(model="m", prompt=PROMPT, max_tokens=2, stream=True))
    assert report(kv_server, chunks[0])["reused_tokens"] == 96


def test_the_account_adds_up_at_any_moment(client, kv_server):
    texts = [[(3 + i * (j + 2)) % 200 for i in range(80)] for j in range(4)]
    threads = [
        threading.Thread(
            target=client.completions.create,
            kwargs=dict(model="m", prompt=text, max_tokens=150, extra_body={"ignore_eos": True}),
        )
        for text in texts * 2
    ]
    for thread in threads:
        thread.start()
    moments = 0
    while moments < 3 or any(thread.is_alive() for thread in threads):
        moments += 1
        kv = get(kv_server, "/v1/kv")
        assert kv["live_bytes"] + kv["cached_bytes"] + kv["free_bytes"] + kv["overhead_bytes"] == kv["budget_bytes"]
        assert kv["stored_bytes"] + kv["internal_waste_bytes"] + kv["reserved_unused_bytes"] == kv["live_bytes"]
        group = kv["models"][0]["groups"][0]
        assert (group["live_blocks"]) * group["block_bytes"] == kv["live_bytes"]
        assert kv["sharing_factor"] is None or kv["sharing_factor"] >= 1
    for thread in threads:
        thread.join()
    kv = get(kv_server, "/v1/kv")
    assert kv["budget_bytes"] == 8 << 20 and kv["cached_bytes"] > 0
    curve = kv["reuse_distance"]
    assert [point["budget"] for point in curve["hit_rates"]] == [0.5, 1, 2, 4]
    rates = [point["hit_rate"] for point in curve["hit_rates"]]
    assert curve["looked_up_blocks"] == 8 * 2 and rates == sorted(rates) and rates[-1] == 0.5
    blocks = get(kv_server, "/v1/kv/blocks")
    slots = "".join(extent["slots"] for extent in blocks["extents"])
    assert slots.count("c") == kv["models"][0]["groups"][0]["cached_blocks"] and set(slots) <= set(".osc")


def test_unknown_ids_pages_and_methods(kv_server):
    status, body = kv_server.get("/v1/requests/chatcmpl-0/cache")
    assert status == 404 and "chatcmpl-0" in json.loads(body)["error"]["message"]
    assert kv_server.get("/v1/kv/blocks?page=1000000")[0] == 404
    status, body = kv_server.get("/v1/kv/blocks?page=first")
    assert status == 400 and json.loads(body)["error"]["param"] == "page"
    assert kv_server.post("/v1/kv", {})[0] == 405


def test_explain_off(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--explain", "off")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask(client, PROMPT)
        answer, header = ask(client, PROMPT)
    assert answer.usage.prompt_tokens_details.cached_tokens == 96 and header is None
    status, body = server.get(f"/v1/requests/{answer.id}/cache")
    assert status == 404 and "--explain off" in body
    assert get(server, "/v1/kv")["reuse_distance"] is None
