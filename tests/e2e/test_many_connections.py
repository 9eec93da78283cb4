"""Ten thousand idle connections and a thousand streams at once, for real over loopback; probes are answered meanwhile."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import struct
import time

import pytest

N_IDLE, N_STREAMS = 10_000, 1_000
IDLE_BYTES = 12 * 1024  # of a connection, in the process: about 8 KiB, and what malloc makes of it
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1}
VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < N_IDLE + 200:
        pytest.skip(f"this shell may open {hard} files (ulimit -Hn): too few for {N_IDLE} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def n_open(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def resident_bytes(server):
    with open(f"/proc/{server.pid}/status") as status:
        return int(re.search(r"RssAnon:\s+(\d+) kB", status.read()).group(1)) * 1024


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.02)


def connect(server):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    # Ends with a reset: ten thousand sockets in TIME_WAIT would take the ports of the next test.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def stream_body(max_tokens):
    return json.dumps(CHAT | {"stream": True, "max_tokens": max_tokens, "ignore_eos": True}).encode()


def post(body):
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def seconds_to_first_token(server):
    with connect(server) as sock:
        began = time.monotonic()
        sock.sendall(post(stream_body(4)))
        seen = b""
        while seen.count(b'"delta"') < 2:  # the first has the role alone
            more = sock.recv(65536)
            assert more, seen
            seen += more
        return time.monotonic() - began


def test_ten_thousand_idle_connections(start_server, tiny_models, record_property):
    server = start_server(tiny_models["tiny-llama"])
    for _ in range(3):
        alone_s = seconds_to_first_token(server)
    files, bytes_before = n_open(server), resident_bytes(server)
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        socks = [stack.enter_context(connect(server)) for _ in range(N_IDLE)]
        wait_until(lambda: n_open(server) >= N_IDLE)
        record_property("connect_s", time.monotonic() - began)
        per_connection = (resident_bytes(server) - bytes_before) / N_IDLE
        beside_s = min(seconds_to_first_token(server) for _ in range(5))
        record_property("bytes_per_idle_connection", per_connection)
        record_property("first_token_s_alone_and_beside", (alone_s, beside_s))
        print(f"{per_connection:.0f} bytes each; first token {alone_s * 1e3:.1f} ms alone, {beside_s * 1e3:.1f} ms beside them")
        assert per_connection < IDLE_BYTES
        assert server.post("/v1/chat/completions", CHAT)[0] == 200
        for sock in socks[:: N_IDLE // 100]:  # they are alive, and may stay
            sock.sendall(VERSION)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert server.get("/livez")[0] == server.get("/readyz")[0] == 200
    wait_until(lambda: n_open(server) <= files + 8)
    assert server.post("/v1/chat/completions", CHAT)[0] == 200


def test_more_connections_than_there_may_be(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--max-connections", 50)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(server))
        wait_until(lambda: n_open(server) >= 50)
        for _ in range(10):  # each of those beyond is told
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
                answer = sock.recv(4096).decode()
            assert answer.startswith("HTTP/1.1 503 ") and "Retry-After: " in answer and "too many connections" in answer
    wait_until(lambda: server.get("/livez")[0] == 200)


async def one_stream(server, request, go, heads):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request[:-1])
    await go.wait()
    writer.write(request[-1:])
    status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
    heads.append(status)
    text = b""
    while b"[DONE]" not in text and (more := await reader.read(65536)):
        text += more
    writer.close()
    return status, text.count(b'"delta":{"content"'), b"[DONE]" in text


async def thousand_streams(server, request):
    go, heads, peak, livez_s = asyncio.Event(), [], 0, []
    streams = []
    for i in range(N_STREAMS):
        streams.append(asyncio.create_task(one_stream(server, request, go, heads)))
        if i % 50 == 49:
            await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    began = time.monotonic()
    go.set()
    while not all(stream.done() for stream in streams):
        asked = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/engine HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        livez_s.append(time.monotonic() - asked)
        engine = json.loads((await reader.read()).rpartition(b"\r\n\r\n")[2])
        peak = max(peak, engine["running"] + engine["waiting"])
        writer.close()
        await asyncio.sleep(0.02)
    return [stream.result() for stream in streams], peak, time.monotonic() - began, livez_s


def test_a_thousand_streams_at_once(start_server, tiny_models, record_property):
    """With the defaults all are held, running or queued; none is refused, and all end well."""
    server = start_server(tiny_models["tiny-llama"])
    answers, peak, seconds, livez_s = asyncio.run(thousand_streams(server, post(stream_body(64))))
    record_property("streams_s", seconds)
    print(f"{seconds:.1f} s, {peak} at once at most, slowest of {len(livez_s)} /livez {max(livez_s) * 1e3:.0f} ms")
    assert {status for status, _, _ in answers} == {200}
    assert all(done for _, _, done in answers)
    assert peak > N_STREAMS * 0.5
    wait_until(lambda: json.loads(server.get("/v1/engine")[1])["kv_live_blocks"] == 0)
    assert server.get("/readyz")[0] == 200


def test_who_is_too_many_is_told_when_to_come_again(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--max-streams", 8)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(connect(server))
            sock.sendall(post(stream_body(1500)))
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        with connect(server) as late:
            late.sendall(post(stream_body(4)))
            answer = late.recv(65536).decode()
        status, body = server.get("/readyz")
        assert server.get("/livez")[0] == 200
    assert answer.startswith("HTTP/1.1 429 ") and "--max-streams" in answer, answer
    assert 1 <= int(re.search(r"Retry-After: (\d+)\r\n", answer).group(1)) <= 600
    assert status == 503 and "--max-streams" in body
    wait_until(lambda: server.get("/readyz")[0] == 200)
