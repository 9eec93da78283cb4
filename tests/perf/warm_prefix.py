#!/usr/bin/env python3
"""Time to first token of a long prompt whose prefix is cached, beside the cold one: from RAM, and from disk by the next process.

  tests/perf/warm_prefix.py [--binary build/release/pagoda] [--model smollm2] [--tokens 2048] [--repeat 5] [--threads 2] [--json FILE]

Over HTTP, streamed, greedy. `cold`: a prompt never seen. `warm`: the same prompt but for its last 16 tokens. `disk`: the same by a process
started after the first one ended, its files dropped from the page cache. Limit for warm: 5 % of cold, or one decode step and 10 ms.
The tier's own rate stands beside that of plain reads of the same files, past the page cache: by one thread, and by four.
"""

import argparse
import concurrent.futures
import http.client
import json
import mmap
import os
import pathlib
import queue
import random
import statistics
import sys
import tempfile
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pagoda_process import ROOT, Server  # noqa: E402

TAIL = 16


def stream(server, prompt, max_tokens):
    """(ms to the first token, ms between tokens, cached tokens, text) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"the server answered {answer.status}: {answer.read().decode()}")
    moments, text, cached = [], "", 0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk["choices"]:
            moments.append(time.perf_counter() - begin)
            text += chunk["choices"][0]["text"]
        if chunk.get("usage"):
            cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    return moments[0] * 1000, statistics.median(gaps) * 1000 if gaps else 0, cached, text


def drop_from_page_cache(folder):
    for path in pathlib.Path(folder).iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def written(file, chunk):
    """Offsets of the chunks in which something was written; what was only reserved is read without the disk."""
    end, size = 0, os.fstat(file).st_size
    while end < size:
        try:
            begin = max(os.lseek(file, end, os.SEEK_DATA) // chunk * chunk, end)
        except OSError:  # the rest is a hole
            return
        end = os.lseek(file, begin, os.SEEK_HOLE)
        yield from range(begin, end, chunk)


def plain_rate(folder, n_threads, chunk=1 << 20):
    """Bytes/s of reading what the folder's files hold, past the page cache."""
    files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in pathlib.Path(folder).glob("*.seg")]
    pieces = [(file, at) for file in files for at in written(file, chunk)]
    buffers = queue.SimpleQueue()  # on page boundaries, and touched
    for _ in range(n_threads):
        buffers.put(mmap.mmap(-1, chunk, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))

    def read(piece):
        buffer = buffers.get()
        n_bytes = os.preadv(piece[0], [buffer], piece[1])
        buffers.put(buffer)
        return n_bytes

    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        begin = time.perf_counter()
        n_bytes = sum(pool.map(read, pieces))
        seconds = time.perf_counter() - begin
    for file in files:
        os.close(file)
    return n_bytes / seconds


def wait_until_stored(server):
    puts = [-1]
    while len(puts) < 6 or puts[-6] != puts[-1]:
        puts.append(json.loads(server.get("/v1/kv")[1])["tiers"][0]["puts"])
        time.sleep(0.1)


def measure(args, folder):
    rng = random.Random(7)
    binary, log = types.SimpleNamespace(binary=args.binary), ROOT / "build" / "warm_prefix.log"
    options = ["-t", args.threads, "--kv-disk", folder]
    rows, texts = {"cold": [], "warm": [], "disk": []}, {}
    server = Server(binary, args.model, *options, log_path=log)
    stream(server, [rng.randrange(1000, 40000) for _ in range(256)], 8)  # warms up
    step_ms, prompts = [], []
    for n in range(args.repeat):
        base = [rng.randrange(1000, 40000) for _ in range(args.tokens - TAIL)]
        first, second = ([*base, *(rng.randrange(1000, 40000) for _ in range(TAIL))] for _ in range(2))
        ms, _, cached, _ = stream(server, first, 1)
        rows["cold"].append(ms)
        assert cached == 0, cached
        ms, gap, cached, texts[n] = stream(server, second, 16)
        assert cached >= args.tokens - TAIL - 32, cached
        rows["warm"].append(ms)
        step_ms.append(gap)
        prompts.append(second)
    wait_until_stored(server)
    server.stop()
    drop_from_page_cache(folder)
    server = Server(binary, args.model, *options, log_path=log)
    stream(server, [rng.randrange(1000, 40000) for _ in range(256)], 8)
    same = True
    for n, prompt in enumerate(prompts):
        ms, _, cached, text = stream(server, prompt, 16)
        rows["disk"].append(ms)
        same &= text == texts[n] and cached >= args.tokens - TAIL - 32
    disk = json.loads(server.get("/v1/kv")[1])["tiers"][0]
    server.stop()
    plain = {n_threads: statistics.median(plain_rate(folder, n_threads) for _ in range(3)) for n_threads in (1, 4)}
    return {name: statistics.median(found) for name, found in rows.items()} | {
        "runs": rows, "decode_step": statistics.median(step_ms), "same_text": same, "disk_bytes_per_s": disk["read_bytes_per_s"],
        "plain_bytes_per_s": plain}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build/release/pagoda")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        found = measure(args, folder)
    limit = max(0.05 * found["cold"], found["decode_step"] + 10)
    print(f"time to first token, {args.tokens} tokens, median of {args.repeat}, ms; a decode step takes {found['decode_step']:.1f}")
    print(f"  cold  {found['cold']:8.1f}")
    print(f"  warm  {found['warm']:8.1f}   {100 * found['warm'] / found['cold']:.1f} % of cold; limit {limit:.1f} ms")
    print(f"  disk  {found['disk']:8.1f}   {found['cold'] / found['disk']:.1f} x faster than cold; reads {found['disk_bytes_per_s'] / 1e6:.0f} MB/s")
    plain = found["plain_bytes_per_s"]
    print(f"        plain reads: one thread {plain[1] / 1e6:.0f} MB/s, four {plain[4] / 1e6:.0f}: "
          f"{100 * found['disk_bytes_per_s'] / max(plain.values()):.0f} % of the faster")
    print(f"  texts {'the same' if found['same_text'] else 'DIFFER, or the disk was not hit'}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1))
    return 0 if found["same_text"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
