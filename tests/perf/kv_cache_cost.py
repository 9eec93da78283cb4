#!/usr/bin/env python3
"""What generation costs without a KV cache, measured beside the cost model.

  tests/perf/kv_cache_cost.py [--binary build/release/pagoda] [--model smollm2] [--tokens 64,256,512] [--threads 2] [--json FILE]

With a cache a token costs one row: N tokens take N / D (D: decode tok/s). Without one, token i computes i rows again: together about
N^2 / 2 rows at the prefill rate S. So leaving the cache off takes N * D / (2 * S) times as long. D and S are measured in the same run: S
on a warm server, over prompts of N/4, N/2 and N tokens together, because short prefills are slower per token and cold ones slower still.
Both ways must give the same text.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pagoda_process import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPT = "Once upon a time"


def run(args, prompt, tokens, *options):
    command = [args.binary, "run", args.model, prompt, "--raw", "--json", "-n", str(tokens), "--temperature", "0",
               "-t", str(args.threads), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def seconds(answer):
    return answer["timings"]["prefill_s"] + answer["timings"]["decode_s"]


def prefill_rate(server, lengths, repeats=5):
    """Tokens per second over prompts of those many tokens, each the median of some warm requests."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    tokens = seconds = 0
    for length in lengths:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            connection.request("POST", "/v1/completions", json.dumps({"prompt": [1000] * length, "max_tokens": 1, "temperature": 0}))
            if (answer := connection.getresponse()).status != 200:
                raise SystemExit(f"the server answered {answer.status}: {answer.read().decode()}")
            answer.read()
            times.append(time.perf_counter() - begin)
        tokens += length
        seconds += statistics.median(times)
    return tokens / seconds


def measure(args, server, n):
    s = prefill_rate(server, (n // 4, n // 2, n))
    on = run(args, PROMPT, n)
    off = run(args, PROMPT, n, "--kv-cache", "off")
    generated = on["usage"]["completion_tokens"]
    d = (generated - 1) / on["timings"]["decode_s"]
    return {"tokens": generated, "same_text": on["text"] == off["text"], "decode_tok_s": d, "prefill_tok_s": s,
            "on_s": seconds(on), "off_s": seconds(off), "measured": seconds(off) / seconds(on), "expected": generated * d / (2 * s)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/pagoda")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", default="64,256,512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"{'tokens':>6} {'cache on':>9} {'cache off':>9} {'ratio':>7} {'N D/(2 S)':>9} {'D tok/s':>8} {'S tok/s':>8}  text", flush=True)
    rows = []
    log = ROOT / "build" / "kv_cache_cost.log"
    server = Server(types.SimpleNamespace(binary=args.binary), args.model, "-t", args.threads, log_path=log)
    for n in map(int, args.tokens.split(",")):
        row = measure(args, server, n)
        rows.append(row)
        print(f"{row['tokens']:6} {row['on_s']:8.2f}s {row['off_s']:8.2f}s {row['measured']:6.2f}x {row['expected']:8.2f}x {row['decode_tok_s']:8.1f}"
              f" {row['prefill_tok_s']:8.1f}  {'the same' if row['same_text'] else 'DIFFERS'}", flush=True)
    server.stop()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
    return 0 if all(row["same_text"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
