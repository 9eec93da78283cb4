#!/usr/bin/env python3
"""Load in steps: so many clients at once, short and long prompts mixed, and what they got.

  tests/perf/load.py --server 'pagoda=build/release/pagoda serve M.gguf --port {port}' [--server 'llama.cpp=llama-server -m M.gguf --port {port} ...']
                     [--clients 1,4,16,64,256] [--seconds 60] [--out build/load]

Each client sends its next request when the last one is answered; after a 429 it waits as long as it is told to. Of ten prompts seven have 32 to
128 tokens, two 512, one 2,048; half of them begin with the same 256 tokens. Answers have 16 to 96 tokens. One server runs at a time, each gets the
same requests. Prints a table, and writes OUT.json and OUT.svg.

tok/s        generated tokens that arrived within the step, by its seconds
ttft, gap    time to the first token and from token to token, milliseconds, 50th, 95th and 99th percentile
queue        95th percentile of the time in the queue, milliseconds (servers with vLLM's metrics; the bucket's upper bound)
hits         prompt tokens that were found cached
waste        KV slots behind the last token of a sequence, of the live ones, the mean of samples (Pagoda)
429s, errors answers that said to come later; everything else that was not an answer
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case "
    "week company system program question work government number night point home water room mother area money story fact month lot right"
).split()
START_SECONDS = 180
SAMPLE_SECONDS = 2


@dataclasses.dataclass
class Answers:
    """What the clients of one step heard."""

    ttft: list = dataclasses.field(default_factory=list)
    gaps: list = dataclasses.field(default_factory=list)
    tokens: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0
    errors: dict = dataclasses.field(default_factory=dict)
    waste: list = dataclasses.field(default_factory=list)


class Server:
    def __init__(self, spec, key=""):
        self.name, command = spec.split("=", 1)
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = shlex.split(command.format(port=self.port))
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while self.get("/health") is None:
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended with {self.process.returncode} before it served: {' '.join(words)}")
            if time.monotonic() > until:
                self.stop()
                sys.exit(f"{self.name} does not serve after {START_SECONDS} s")
            time.sleep(0.2)
        self.model = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def get(self, path):
        """The body, or None: no answer, or not a good one."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=self.headers)
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()
        return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def words(n, rng):
    return " ".join(rng.choice(WORDS) for _ in range(n))


SHARED = words(256, random.Random(0))


def request_of(rng):
    n_words = rng.choice([rng.randrange(32, 129)] * 7 + [512] * 2 + [2048])
    prefix = SHARED + " " if rng.random() < 0.5 else ""
    return prefix + words(n_words, rng), rng.randrange(16, 97)


async def complete(server, prompt, n_tokens, until, answers, headers=None):
    """One streamed completion. Seconds to wait before the next one."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": n_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or server.headers).items()]
    head = "\r\n".join([*lines, "", ""])
    begin = last = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    try:
        writer.write(head.encode() + data)
        status = int((await reader.readline()).split()[1])
        answered = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            answered[name.lower()] = value.strip()
        if status == 429:
            answers.refused += 1
            return float(answered.get("retry-after", 1))
        if status != 200:
            raise RuntimeError(f"status {status}")
        ended = False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                ended = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"].get("message", "an error in the stream"))
            now = time.perf_counter()
            if usage := event.get("usage"):
                answers.prompt_tokens += usage["prompt_tokens"]
                answers.cached_tokens += ((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
            if not any(choice.get("text") for choice in event.get("choices", [])):
                continue
            if last == begin:
                answers.ttft.append(now - begin)
            else:
                answers.gaps.append(now - last)
            last = now
            answers.tokens += now < until
        if not ended:
            raise RuntimeError("the stream broke off")
        answers.finished += 1
    finally:
        writer.close()
    return 0


async def client(server, rng, until, answers):
    while time.perf_counter() < until:
        try:
            wait = await complete(server, *request_of(rng), until, answers)
        except (OSError, RuntimeError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
            answers.errors[str(error)] = answers.errors.get(str(error), 0) + 1
            wait = 0.1
        if wait:
            await asyncio.sleep(min(wait, max(0.0, until - time.perf_counter())))


async def sample(server, until, answers):
    """Pagoda's own account of its KV memory."""
    while time.perf_counter() < until:
        text = await asyncio.to_thread(server.get, "/v1/kv")
        if text is None:
            return
        account = json.loads(text)
        if account["live_bytes"]:
            answers.waste.append(account["internal_waste_bytes"] / account["live_bytes"])
        await asyncio.sleep(SAMPLE_SECONDS)


def queue_buckets(server):
    """Upper bound in seconds -> requests, of vLLM's histogram; empty where there is none."""
    text = server.get("/metrics") or ""
    found = re.findall(r'^vllm:request_queue_time_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)$', text, re.MULTILINE)
    return {float(bound): float(count) for bound, count in found}


def queue_p95(before, after):
    counts = {bound: after[bound] - before.get(bound, 0) for bound in after}
    total = max(counts.values(), default=0)
    return next((bound for bound in sorted(counts) if total and counts[bound] >= 0.95 * total), None)


def percentile(values, q):
    return sorted(values)[round(q * (len(values) - 1))] * 1000 if values else None


async def step(server, n_clients, seconds, seed):
    answers = Answers()
    before = queue_buckets(server)
    begin = time.perf_counter()
    until = begin + seconds
    clients = [client(server, random.Random(f"{seed}/{n_clients}/{i}"), until, answers) for i in range(n_clients)]
    await asyncio.gather(*clients, sample(server, until, answers))
    return {
        "server": server.name,
        "clients": n_clients,
        "tokens_per_s": answers.tokens / seconds,
        "requests": answers.finished,
        **{f"ttft_p{q}_ms": percentile(answers.ttft, q / 100) for q in (50, 95, 99)},
        **{f"gap_p{q}_ms": percentile(answers.gaps, q / 100) for q in (50, 95, 99)},
        "queue_p95_ms": (lambda p: None if p is None else 1000 * p)(queue_p95(before, queue_buckets(server))),
        "hit_rate": answers.cached_tokens / answers.prompt_tokens if answers.prompt_tokens else None,
        "waste": sum(answers.waste) / len(answers.waste) if answers.waste else None,
        "refused": answers.refused,
        "errors": answers.errors,
    }


COLUMNS = [
    ("server", "server", "{}"),
    ("clients", "clients", "{}"),
    ("tok/s", "tokens_per_s", "{:.0f}"),
    ("requests", "requests", "{}"),
    *[(f"ttft p{q}", f"ttft_p{q}_ms", "{:.0f}") for q in (50, 95, 99)],
    *[(f"gap p{q}", f"gap_p{q}_ms", "{:.0f}") for q in (50, 95, 99)],
    ("queue p95", "queue_p95_ms", "{:.0f}"),
    ("hits", "hit_rate", "{:.1%}"),
    ("waste", "waste", "{:.1%}"),
    ("429s", "refused", "{}"),
    ("errors", "errors", "{}"),
]


def row_text(result):
    cells = []
    for title, key, form in COLUMNS:
        value = sum(result[key].values()) if key == "errors" else result[key]
        cells.append(("-" if value is None else form.format(value)).rjust(max(len(title), 9)))
    return " ".join(cells)


def plot(results, path):
    import pygal

    chart = pygal.Line(
        title="Load in steps: latency (ms, left, logarithmic) and tokens per second (right)",
        x_title="clients",
        logarithmic=True,
        width=1000,
        height=600,
        legend_at_bottom=True,
        js=[],
    )
    chart.x_labels = [str(n) for n in dict.fromkeys(result["clients"] for result in results)]
    for name in dict.fromkeys(result["server"] for result in results):
        own = [result for result in results if result["server"] == name]
        for key, label in (("ttft_p50_ms", "TTFT p50"), ("ttft_p95_ms", "TTFT p95"), ("ttft_p99_ms", "TTFT p99"), ("gap_p99_ms", "gap p99")):
            chart.add(f"{name} {label}", [result[key] for result in own])
        chart.add(f"{name} tok/s", [result["tokens_per_s"] for result in own], secondary=True, stroke_style={"width": 4})
    chart.render_to_file(str(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, help="NAME=COMMAND with {port}")
    parser.add_argument("--clients", default="1,4,16,64,256")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/load"))
    options = parser.parse_args()
    results = []
    print(" ".join(title.rjust(max(len(title), 9)) for title, _, _ in COLUMNS), flush=True)
    for spec in options.server:
        server = Server(spec)
        try:
            for n_clients in map(int, options.clients.split(",")):
                results.append(asyncio.run(step(server, n_clients, options.seconds, options.seed)))
                print(row_text(results[-1]), flush=True)
                for message, count in results[-1]["errors"].items():
                    print(f"    {count} x {message}", flush=True)
        finally:
            server.stop()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, options.out.with_suffix(".svg"))
    print(f"{options.out.with_suffix('.json')}, {options.out.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
