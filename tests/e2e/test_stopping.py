"""How a server is told to stop: probes turn at once, running streams finish within the limit, new work is refused."""

import json
import signal
import socket
import time

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1}


def begin_stream(server, max_tokens):
    body = json.dumps(CHAT | {"stream": True, "max_tokens": max_tokens, "ignore_eos": True}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
    return sock


def rest_of(sock):
    with sock:
        text = b""
        while more := sock.recv(65536):
            text += more
        return text


def wait_for(server, path, status):
    deadline = time.monotonic() + 30
    while server.get(path)[0] != status:
        assert time.monotonic() < deadline, f"{path} does not answer {status}"
        time.sleep(0.01)


def test_drain_delay(start_server, tiny_models):
    """Work is still taken while balancers learn that the server stops."""
    server = start_server(tiny_models["tiny-llama"], "--drain-delay", 3)
    assert server.get("/readyz") == (200, '{"status":"ok"}')
    server.process.send_signal(signal.SIGTERM)
    wait_for(server, "/readyz", 503)
    assert "stopping" in server.get("/readyz")[1]
    assert server.get("/health") == (503, "")
    assert server.get("/livez")[0] == 200
    assert server.post("/v1/chat/completions", CHAT)[0] == 200
    assert server.process.wait(30) == 0


def test_running_streams_finish(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"])
    sock = begin_stream(server, 1000)
    server.process.send_signal(signal.SIGTERM)
    assert b"[DONE]" in rest_of(sock)
    assert server.process.wait(30) == 0


def test_the_drain_limit_cuts_them(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--drain-limit", 0, "--ctx-size", 65536)
    sock = begin_stream(server, 60_000)
    server.process.send_signal(signal.SIGTERM)
    assert b"[DONE]" not in rest_of(sock)
    assert server.process.wait(30) == 0
