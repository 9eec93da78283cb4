#!/usr/bin/env python3
"""Kills a serving process at random moments while it stores cached prefixes, starts it again on what it left, and asks the same things.

  build/venv/bin/python tests/fault/kill_rounds.py [--rounds 100] [--model smollm2] [--seed N] [--binary build/release/pagoda] [--json FILE]

A round serves with a disk tier, a Redis or both, lets four clients (the openai package) ask prompts with common beginnings, old ones and
new ones, and kills the process with SIGKILL: now and then while it still starts. Now and then Redis stops for a while or loses all that it
has, and between rounds files and values are damaged. Every answer must be,
greedy, the one of a server without tiers, every request must end, every start must succeed, and over the rounds tiers must have been hit.
The seed is printed and makes the same rounds again; the moments of the kills are what the machine makes of them.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pagoda_process import ROOT, Server  # noqa: E402
from redis_process import Redis  # noqa: E402

ANSWER_SECONDS = 120  # a request that takes longer hangs
CLIENTS = 4
GENERATED = 8
WORDS = "the a of and to in is it you that he was for on are with as his they be at one have this from or had by hot but some what".split()


@dataclasses.dataclass
class Load:
    """What the rounds do to a model of its speed."""

    kv_memory: str = "32M"
    disk_size: str = "48M"
    slow_write_rate: str = "10M"
    document_words: int = 220
    question_words: int = 60
    prompts: int = 40  # known at a time
    asked: int = 12  # of those, in a round
    new: int = 6  # of those, never asked before; the oldest are forgotten
    kill_within_s: float = 4.0


TINY = Load(kv_memory="4M", disk_size="4M", slow_write_rate="1M", document_words=60, question_words=20, prompts=24, asked=24, new=8, kill_within_s=0.5)


def make_prompts(load, n, seed=1):
    """A beginning for each four, and for each more or less of it and words of its own."""
    rng = random.Random(seed)
    documents = [rng.choices(WORDS, k=load.document_words) for _ in range(-(-n // 4))]
    prompts = []
    for i in range(n):
        begin = documents[i // 4][: rng.randint(load.document_words // 2, load.document_words)]
        prompts.append(" ".join(begin + rng.choices(WORDS, k=load.question_words)))
    return prompts


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=ANSWER_SECONDS)


def ask(client, prompt):
    return client.completions.create(model="m", prompt=prompt, max_tokens=GENERATED, temperature=0, extra_body={"ignore_eos": True})


class Truth:
    """What a server without tiers answers; asked once for each prompt."""

    def __init__(self, pagoda, model, log_path):
        self.server = Server(pagoda, model, "--kv-memory", "64M", "--prefix-cache", "off", log_path=log_path)
        self.client = client_of(self.server)
        self.texts = {}
        self.lock = threading.Lock()

    def __call__(self, prompt):
        with self.lock:
            if prompt not in self.texts:
                self.texts[prompt] = ask(self.client, prompt).choices[0].text
            return self.texts[prompt]

    def stop(self):
        self.client.close()
        assert self.server.stop() == 0, self.server.log_end()


def tiers_of(server):
    """GET /v1/kv's tiers, or nothing from a server that is gone."""
    try:
        status, body = server.get("/v1/kv")
        return json.loads(body)["tiers"] if status == 200 else []
    except (OSError, ValueError):
        return []


def puts_of(tiers):
    return sum(tier["puts"] for tier in tiers)


def add_counts(sums, tiers):
    for tier in tiers:
        for name in ("puts", "hits", "restored_tokens"):
            sums[f"{tier['tier']} {name}"] = sums.get(f"{tier['tier']} {name}", 0) + tier[name]
        for kind in ("drops", "faults"):
            for name, count in tier[kind].items():
                key = f"{tier['tier']} {kind} {name}"
                sums[key] = sums.get(key, 0) + count


def damage_folder(folder, rng):
    """One thing that a disk or a careless user does to the files there; its name."""
    segments = sorted(folder.glob("*.seg"))
    if not segments:
        return "nothing"
    path = rng.choice(segments)
    data = bytearray(path.read_bytes())
    what = rng.choice(("flipped bits", "cut", "zeroes", "rubbish"))
    if what == "flipped bits":
        for _ in range(rng.randint(1, 64)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "cut":
        data = data[: rng.randrange(len(data))]
    elif what == "zeroes":
        begin = rng.randrange(len(data))
        end = min(len(data), begin + 65536)
        data[begin:end] = bytes(end - begin)
    else:
        path = folder / f"kv-{rng.randrange(1 << 32):016x}.seg"
        data = rng.randbytes(rng.randrange(10000))
    path.write_bytes(data)
    return what


def damage_redis(redis, rng):
    keys = redis.keys()
    for key in rng.sample(keys, min(len(keys), 8)):
        redis.command("SETRANGE", key, rng.randrange(redis.command("STRLEN", key)), rng.randbytes(rng.randint(1, 16)))


class Rounds:
    """Serves, kills and asks; `problems` says what went wrong, in words."""

    def __init__(self, pagoda, model, load, seed, folder):
        self.pagoda, self.model, self.load, self.folder = pagoda, model, load, pathlib.Path(folder)
        self.rng = random.Random(seed)
        self.prompts = make_prompts(load, load.prompts, seed)
        self.truth = Truth(pagoda, model, self.folder / "truth.log")
        self.redis = Redis()
        self.problems, self.counts = [], {}
        self.answered = self.cached_tokens = self.starts = self.killed_storing = 0

    def close(self):
        self.truth.stop()
        self.redis.stop()

    def options(self):
        disk = ["--kv-disk", self.folder / "kv", "--kv-disk-size", self.load.disk_size]
        if self.rng.random() < 0.5:
            disk += ["--kv-disk-write-rate", self.load.slow_write_rate]
        redis = ["--kv-redis", self.redis.url]
        return ["--kv-memory", self.load.kv_memory, *self.rng.choice((disk, disk, redis, disk + redis))]

    def start(self, options):
        self.starts += 1
        return Server(self.pagoda, self.model, *options, log_path=self.folder / "server.log")

    def judge(self, prompt, answer):
        self.answered += 1
        self.cached_tokens += answer.usage.prompt_tokens_details.cached_tokens
        if answer.choices[0].text != self.truth(prompt):
            self.problems.append(f"a wrong answer: {answer.choices[0].text!r} instead of {self.truth(prompt)!r}")

    def serve(self, server, prompts, is_killed):
        """Asks all prompts, or until the server is killed."""
        left, lock = list(prompts), threading.Lock()

        def work():
            with client_of(server) as client:
                while True:
                    with lock:
                        if not left:
                            return
                        prompt = left.pop()
                    try:
                        answer = ask(client, prompt)
                    except openai.APITimeoutError:
                        self.problems.append(f"no answer within {ANSWER_SECONDS} s")
                        return
                    except openai.APIError as error:
                        if not is_killed.is_set():
                            self.problems.append(f"a request failed: {error}")
                        return
                    with lock:
                        self.judge(prompt, answer)

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(work) for _ in range(CLIENTS)]:
                done.result()

    def killed_round(self):
        new = make_prompts(self.load, self.load.new, self.rng.random())
        self.prompts = self.prompts[len(new) :] + new
        prompts = self.rng.sample(self.prompts[: -len(new)], self.load.asked - len(new)) + new
        self.rng.shuffle(prompts)
        for prompt in prompts:
            self.truth(prompt)  # known before, so that the server is killed while it works
        server, is_killed, seen = self.start(self.options()), threading.Event(), [[]]
        # At a moment, or soon after some blocks are stored.
        enough_puts = self.rng.choice((1 << 30, self.rng.randint(1, 60)))
        moment = time.monotonic() + self.rng.uniform(0, self.load.kill_within_s)
        pause = self.rng.uniform(0, 0.02)

        def kill():
            while time.monotonic() < moment and puts_of(seen[-1]) < enough_puts:
                seen.append(tiers_of(server))
                time.sleep(0.01)
            time.sleep(pause)
            is_killed.set()
            server.kill()

        threads = [threading.Thread(target=kill), threading.Thread(target=self.disturb_redis, args=(random.Random(self.rng.random()),))]
        for thread in threads:
            thread.start()
        self.serve(server, prompts, is_killed)
        for thread in threads:
            thread.join()
        add_counts(self.counts, seen[-1])
        self.killed_storing += puts_of(seen[-1]) > puts_of(seen[max(0, len(seen) - 6)])

    def disturb_redis(self, rng):
        if rng.random() < 0.7:
            return
        time.sleep(rng.uniform(0, self.load.kill_within_s))
        stop, go_on = rng.choice(((self.redis.pause, self.redis.resume), (self.redis.stop, self.redis.start)))
        stop()
        time.sleep(rng.uniform(0, self.load.kill_within_s))
        go_on()

    def killed_while_starting(self):
        command = [self.pagoda.binary, "serve", self.model, "--port", 0, *self.options()]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def round(self):
        damage = "whole"
        if self.rng.random() < 0.3:
            damage = damage_folder(self.folder / "kv", self.rng)
            damage_redis(self.redis, self.rng)
        if self.rng.random() < 0.1:
            self.killed_while_starting()
        self.killed_round()
        return damage

    def last_round(self):
        """Nobody is killed: both tiers, every prompt, and an orderly end."""
        disk = ["--kv-disk", self.folder / "kv", "--kv-disk-size", self.load.disk_size]
        server = self.start(["--kv-memory", self.load.kv_memory, *disk, "--kv-redis", self.redis.url])
        self.serve(server, self.prompts, threading.Event())
        add_counts(self.counts, tiers_of(server))
        if (code := server.stop()) != 0:
            self.problems.append(f"the last server ended with {code}: {server.log_end()}")

    def result(self):
        return {"starts": self.starts, "killed_storing": self.killed_storing, "answers": self.answered,
                "cached_tokens": self.cached_tokens, "counts": dict(sorted(self.counts.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--binary", default=ROOT / "build/release/pagoda")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(types.SimpleNamespace(binary=args.binary), args.model, Load(), args.seed, folder)
        try:
            for n in range(args.rounds):
                damage = rounds.round()
                print(f"{n + 1:4} {damage:<12} {rounds.answered:5} answers {rounds.cached_tokens:7} cached tokens", flush=True)
                if rounds.problems:
                    break
            rounds.last_round()
        finally:
            rounds.close()
    result = {"seed": args.seed, "rounds": args.rounds, "seconds": round(time.monotonic() - begin)} | rounds.result()
    print(json.dumps(result, indent=1))
    print("\n".join(rounds.problems) if rounds.problems else "every answer right, none missing")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))
    return 1 if rounds.problems or sum(n for name, n in rounds.counts.items() if name.endswith("hits")) == 0 else 0


if __name__ == "__main__":
    raise SystemExit(main())
