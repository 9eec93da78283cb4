"""Random requests, many at once, on a small budget with a disk and a Redis: salts, choices, seeds, streams that clients leave. Whoever stays is
answered as by a server that caches nothing; nothing is held in the end, and the account adds up at any moment. The seed is printed."""

import concurrent.futures
import json
import random
import socket
import threading
import time

import pytest
from redis_process import Redis

REQUESTS, CLIENTS = 160, 12


def random_bodies(rng):
    """Requests whose prompts grow out of each other, as conversations do."""
    prompts, bodies = [[rng.randrange(10, 250) for _ in range(60)]], []
    for _ in range(REQUESTS):
        base = rng.choice(prompts[-12:])
        prompt = base[: rng.randint(1, len(base))] + [rng.randrange(10, 250) for _ in range(rng.randint(1, 120))]
        prompts.append(prompt[:600])
        body = {"prompt": prompts[-1], "max_tokens": rng.randint(1, 60), "ignore_eos": True, "seed": rng.randrange(1000)}
        body |= rng.choice(({"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.7, "n": 2}, {"temperature": 0, "logprobs": 2}))
        if rng.random() < 0.2:
            body["cache_salt"] = f"salt{rng.randrange(3)}"
        bodies.append(body)
    return bodies


def ask(server, body):
    status, text = server.post("/v1/completions", body)
    assert status == 200, text
    return [(choice["text"], choice["logprobs"]) for choice in json.loads(text)["choices"]]


def leave(server, body, after_s):
    """Asks for a stream and goes away."""
    data = json.dumps(body | {"stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        time.sleep(after_s)


def kv_of(server):
    kv = json.loads(server.get("/v1/kv")[1])
    assert kv["live_bytes"] + kv["cached_bytes"] + kv["free_bytes"] + kv["overhead_bytes"] == kv["budget_bytes"]
    assert kv["stored_bytes"] + kv["internal_waste_bytes"] + kv["reserved_unused_bytes"] == kv["live_bytes"]
    return kv


@pytest.mark.parametrize("model,budget", [("tiny-llama-mha", "4M"), ("tiny-gemma3", "4M")])
def test_random_traffic(start_server, tiny_models, tmp_path, model, budget):
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bodies = random_bodies(rng)
    leaves = [rng.random() < 0.2 for _ in bodies]
    pauses = [rng.uniform(0, 0.05) for _ in bodies]
    plain = start_server(tiny_models[model], "--prefix-cache", "off")
    redis = Redis()
    server = start_server(
        tiny_models[model], "--kv-memory", budget, "--kv-disk", tmp_path / "kv", "--kv-disk-size", "2M", "--kv-redis", redis.url
    )
    ended = threading.Event()

    def look():
        while not ended.is_set():
            kv_of(server)
            time.sleep(0.02)

    def one(i):
        if leaves[i]:
            return leave(server, bodies[i], pauses[i])
        assert ask(server, bodies[i]) == ask(plain, bodies[i]), bodies[i]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
        looking = pool.submit(look)
        asked = [pool.submit(one, i) for i in range(REQUESTS)]
        concurrent.futures.wait(asked)
        ended.set()
        for done in (looking, *asked):
            done.result()
    redis.stop()
    deadline = time.monotonic() + 10
    while kv_of(server)["live_bytes"] > 0:
        assert time.monotonic() < deadline, kv_of(server)
        time.sleep(0.05)
