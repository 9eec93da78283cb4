#!/usr/bin/env python3
"""64 requests at once with a KV budget for 16: all finish, and how their throughput compares with the ideal for that budget.

  tests/perf/small_budget.py [--binary build/release/pagoda] [--model smollm2] [--repeat 3] [--threads 2] [--json FILE]

The ideal: the same requests, never more than 16 of them at the server, which has room for all. Prompts of 32 to 256 tokens, answers of 32 to
160, none alike, nothing cached before. The budget is 16 times their mean length at the end. Both servers run; one works at a time.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import statistics
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pagoda_process import ROOT, Server  # noqa: E402

REQUESTS, ROOM_FOR = 64, 16
BLOCK_TOKENS = 32


def make_requests(seed):
    rng = random.Random(seed)
    return [([rng.randrange(10, 250) for _ in range(rng.randint(32, 256))], rng.randint(32, 160)) for _ in range(REQUESTS)]


def ask(server, request):
    """(text, id of the answer); None if the request failed."""
    prompt, max_tokens = request
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    if answer.status != 200 or found["usage"]["completion_tokens"] != max_tokens:
        return None
    return found["choices"][0]["text"], found["id"]


def run(server, requests, at_once):
    """(generated tokens/s, texts, tokens that preemptions made it compute again)"""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda request: ask(server, request), requests))
    rate = sum(n for _, n in requests) / (time.perf_counter() - begin)
    reports = [json.loads(server.get(f"/v1/requests/{answer[1]}/cache")[1]) for answer in answers if answer]
    again = sum(prompt["recomputed_tokens"] for report in reports for prompt in report["prompts"])
    return rate, [answer and answer[0] for answer in answers], again


def bytes_per_token(server):
    groups = json.loads(server.get("/v1/kv")[1])["models"][0]["groups"]
    return sum(group["block_bytes"] for group in groups) / BLOCK_TOKENS


def budget_bytes(requests, per_token):
    mean_blocks = statistics.mean(-(-(len(prompt) + n) // BLOCK_TOKENS) for prompt, n in requests)
    return int(ROOM_FOR * mean_blocks * BLOCK_TOKENS * per_token)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build/release/pagoda")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    binary = types.SimpleNamespace(binary=args.binary)
    roomy = Server(binary, args.model, "-t", args.threads, "--kv-memory", "1G", log_path=ROOT / "build" / "roomy.log")
    budget = budget_bytes(make_requests(0), bytes_per_token(roomy))
    small = Server(binary, args.model, "-t", args.threads, "--kv-memory", budget, log_path=ROOT / "build" / "small.log")
    rates, failed, differing, recomputed = {"ideal": [], "small": [], "roomy": []}, 0, 0, 0
    for n in range(args.repeat):
        texts = {}
        for name, server, at_once, salt in (("ideal", roomy, ROOM_FOR, 0), ("small", small, REQUESTS, 0), ("roomy", roomy, REQUESTS, 1)):
            # The roomy server would find its own prompts cached.
            rate, texts[name], again = run(server, make_requests(2 * n + salt), at_once)
            rates[name].append(rate)
            recomputed += again
        failed += sum(text is None for text in texts["small"])
        differing += sum(a != b for a, b in zip(texts["small"], texts["ideal"]))
    small.stop()
    roomy.stop()
    median = {name: statistics.median(found) for name, found in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["small"], rates["ideal"]))
    print(f"{REQUESTS} requests at once, KV budget {budget / 2**20:.1f} MiB, room for {ROOM_FOR}; generated tokens/s, median of {args.repeat}")
    print(f"  16 at a time, room for all  {median['ideal']:8.1f}")
    print(f"  64 at once, this budget     {median['small']:8.1f}   {100 * ratio:.1f} % of it; limit 85 %")
    print(f"  64 at once, room for all    {median['roomy']:8.1f}")
    computed = args.repeat * sum(len(prompt) + n for prompt, n in make_requests(0))
    print(f"  {failed} failed, {differing} texts differ; preemptions made it compute {100 * recomputed / computed:.1f} % of the tokens again")
    if args.json:
        found = {"budget_bytes": budget, "rates": rates, "ratio": ratio, "failed": failed, "differing": differing, "recomputed_tokens": recomputed}
        pathlib.Path(args.json).write_text(json.dumps(found))
    return 1 if failed or differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
