"""64 requests at once with a KV budget for 16: all finish, none fails, and each is answered as if it were alone. perf/small_budget.py measures."""

import json

from perf.small_budget import REQUESTS, ROOM_FOR, budget_bytes, bytes_per_token, make_requests, run


def test_all_finish(start_server, tiny_models):
    requests = make_requests(3)
    roomy = start_server(tiny_models["tiny-llama-mha"], "--kv-memory", "256M")
    budget = budget_bytes(requests, bytes_per_token(roomy))
    small = start_server(tiny_models["tiny-llama-mha"], "--kv-memory", budget)
    _, expected, _ = run(roomy, requests, ROOM_FOR)
    _, texts, _ = run(small, requests, REQUESTS)
    assert None not in texts and texts == expected
    kv = json.loads(small.get("/v1/kv")[1])
    assert kv["budget_bytes"] == budget and kv["live_bytes"] == 0
    assert kv["evicted_blocks"]["for_room"] > 0
