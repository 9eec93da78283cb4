"""Priority and timeout of requests, through the API."""

import json
import threading
import time


def complete(server, **fields):
    return server.post("/v1/completions", {"prompt": "a b c d", "max_tokens": 8, "ignore_eos": True, "temperature": 0, **fields})


def test_a_timeout_before_the_first_token_is_an_error(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--max-running", 1)
    running = threading.Thread(target=complete, args=(server,), kwargs={"max_tokens": 200})
    running.start()
    while json.loads(server.get("/v1/engine")[1])["running"] == 0:
        time.sleep(0.001)
    status, text = complete(server, timeout=0.001)
    running.join()
    assert status == 504, text
    error = json.loads(text)["error"]
    assert error["type"] == "timeout_error"
    assert "0.001 s" in error["message"]
    assert complete(server, timeout=60)[0] == 200


def test_a_timeout_later_ends_with_what_there_is(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"])
    whole = json.loads(complete(server, max_tokens=200)[1])["choices"][0]
    assert whole["finish_reason"] == "length"
    assert whole["stop_reason"] is None
    for seconds in (0.02, 0.05, 0.1, 0.2):  # how fast the machine is nobody knows
        status, text = complete(server, max_tokens=200, timeout=seconds)
        choice = json.loads(text)["choices"][0] if status == 200 else {}
        if status == 504 or choice["stop_reason"] != "timeout":
            continue
        assert choice["finish_reason"] == "length"
        assert whole["text"].startswith(choice["text"].rstrip("\ufffd"))  # a character may have been cut
        assert len(choice["text"]) < len(whole["text"])


def test_the_lower_priority_goes_first(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--max-running", 1, "--max-queued", 64)
    ended = []

    def ask(name, **fields):
        assert complete(server, **fields)[0] == 200
        ended.append(name)

    first = threading.Thread(target=ask, args=("first",), kwargs={"max_tokens": 240})
    first.start()
    while json.loads(server.get("/v1/engine")[1])["running"] == 0:
        time.sleep(0.001)
    others = []
    for i, (name, priority) in enumerate((("late", 5), ("plain", 0), ("early", -5))):
        others.append(threading.Thread(target=ask, args=(name,), kwargs={"priority": priority, "max_tokens": 100}))
        others[-1].start()
        while "first" not in ended and json.loads(server.get("/v1/engine")[1])["waiting"] <= i:
            time.sleep(0.001)
    is_clear = not ended  # all were waiting before the first one ended
    for thread in (first, *others):
        thread.join()
    if is_clear:
        assert ended == ["first", "early", "plain", "late"]


def test_fields_are_checked(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"])
    for fields, named in (
        ({"priority": 1.5}, "priority"),
        ({"priority": 100_000}, "priority"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
    ):
        status, text = complete(server, **fields)
        assert status == 400, text
        assert json.loads(text)["error"]["param"] == named
