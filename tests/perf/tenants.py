#!/usr/bin/env python3
"""What tenants feel of each other, measured: a flood beside single requests, and shares by weight where both want more than there is.

  tests/perf/tenants.py [--binary build/release/pagoda] [--model MODEL.gguf] [--seconds 40]

flood    tenant a sends 200 requests at once, b one after the other: b's time to the first token beside its figure alone
shares   both keep 96 requests in flight; a's weight is 3, b's 1: computed tokens of each, of those that ended within the time
"""

import argparse
import asyncio
import hashlib
import json
import random
import tempfile
import time
from pathlib import Path

from load import Answers, Server, complete, percentile, words

KEYS = {"a": "key-of-tenant-a", "b": "key-of-tenant-b"}


def key_file(folder, weights):
    tenants = [{"name": name, "keys": [hashlib.sha256(KEYS[name].encode()).hexdigest()], "weight": weights[name]} for name in KEYS]
    path = Path(folder) / "keys.json"
    path.write_text(json.dumps({"tenants": tenants}))
    return path


async def ask(server, name, n_words, n_tokens, rng, answers):
    headers = {"Authorization": f"Bearer {KEYS[name]}"}
    wait = await complete(server, words(n_words, rng), n_tokens, time.perf_counter() + 3600, answers, headers)
    if wait:
        await asyncio.sleep(wait)


async def single(server, n, rng):
    answers = Answers()
    for _ in range(n):
        await ask(server, "b", 100, 16, rng, answers)
    return answers.ttft


async def flood(server, rng):
    lone = await single(server, 20, rng)
    flooding = [asyncio.create_task(ask(server, "a", rng.randrange(50, 400), 100, rng, Answers())) for _ in range(200)]
    await asyncio.sleep(1)
    beside = await single(server, 20, rng)
    still = sum(not task.done() for task in flooding)
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)
    print(f"flood: b's TTFT alone p50 {percentile(lone, 0.5):.0f} p95 {percentile(lone, 0.95):.0f} ms, beside 200 requests of a "
          f"p50 {percentile(beside, 0.5):.0f} p95 {percentile(beside, 0.95):.0f} ms ({still} of them still there)", flush=True)


async def shares(server, seconds, rng):
    answers = {name: Answers() for name in KEYS}
    until = time.perf_counter() + seconds

    async def keep_asking(name):
        while time.perf_counter() < until:
            await ask(server, name, rng.randrange(20, 200), 48, rng, answers[name])

    tasks = [asyncio.create_task(keep_asking(name)) for name in KEYS for _ in range(96)]
    await asyncio.sleep(max(0.0, until - time.perf_counter()))
    computed = {name: own.prompt_tokens - own.cached_tokens + 48 * own.finished for name, own in answers.items()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ratio = computed["a"] / max(1, computed["b"])
    print(f"shares: a {computed['a']}, b {computed['b']} computed tokens of ended requests: {ratio:.2f} where the weights say 3", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/pagoda")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for weights, run in (({"a": 1, "b": 1}, flood), ({"a": 3, "b": 1}, lambda s, r: shares(s, options.seconds, r))):
            keys = key_file(folder, weights)
            server = Server(f"pagoda={options.binary} serve {options.model} --port {{port}} --api-keys {keys} --kv-probe off", KEYS["a"])
            try:
                asyncio.run(run(server, random.Random(1)))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
