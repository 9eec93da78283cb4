"""What openai's client never does: odd packets, odd methods, slow readers, clients that vanish, signals."""

import json
import signal
import socket
import time

import pytest

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1}
LONG = CHAT | {"max_tokens": 1500, "ignore_eos": True, "stream": True}


def post(body, path="/v1/chat/completions", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Raw:
    """A socket that sends what it is told and reads with a deadline."""

    def __init__(self, server, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect(("127.0.0.1", server.port))
        self.unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def read_until(self, end):
        while end not in self.unread:
            more = self.socket.recv(65536)
            if not more:
                break
            self.unread += more
        cut = self.unread.find(end)
        cut = len(self.unread) if cut < 0 else cut + len(end)
        taken, self.unread = self.unread[:cut], self.unread[cut:]
        return taken

    def read_answer(self):
        """(status, headers in lower case, body) of an answer with Content-Length."""
        status_line, *lines = self.read_until(b"\r\n\r\n").decode().strip().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self.unread) < length:
            more = self.socket.recv(65536)
            if not more:
                break
            self.unread += more
        body, self.unread = self.unread[:length], self.unread[length:]
        return int(status_line.split()[1]), headers, body


def ask(server, data):
    with Raw(server) as raw:
        raw.send(data)
        return raw.read_answer()


def stats(server):
    return json.loads(server.get("/v1/engine")[1])


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_split_packets(server):
    data = post(CHAT)
    with Raw(server) as raw:
        for i in range(0, len(data), 7):
            raw.send(data[i : i + 7])
            time.sleep(0.001)
        assert raw.read_answer()[0] == 200


def test_pipelining(server):
    with Raw(server) as raw:
        raw.send(post(CHAT) + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" + post(CHAT))
        first, version, second = raw.read_answer(), raw.read_answer(), raw.read_answer()
    assert first[0] == version[0] == second[0] == 200
    assert b"version" in version[2]
    texts = [json.loads(answer[2])["choices"][0]["message"]["content"] for answer in (first, second)]
    assert texts[0] == texts[1]


def test_chunked_request_body(server):
    data = json.dumps(CHAT).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(data[i : i + 9]), data[i : i + 9]) for i in range(0, len(data), 9))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert ask(server, head + chunks + b"0\r\n\r\n")[0] == 200


def test_h2c_upgrade_is_ignored(server):
    headers = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    assert ask(server, post(CHAT, headers=headers))[0] == 200


def test_expect_continue(server):
    data = post(CHAT, headers="Expect: 100-continue\r\n")
    head, body = data.split(b"\r\n\r\n", 1)
    with Raw(server) as raw:
        raw.send(head + b"\r\n\r\n")
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        raw.send(body)
        assert raw.read_answer()[0] == 200


@pytest.mark.parametrize(
    "body, param",
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', None),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":[{"role":"user","content":"hi"}],"temperature":"1"}', "temperature"),
        (b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1.5}', "max_tokens"),
    ],
)
def test_bad_bodies_get_400_and_the_field(server, body, param):
    status, headers, answer = ask(server, post(body))
    error = json.loads(answer)["error"]
    assert status == 400 and headers["content-type"] == "application/json"
    assert error["param"] == param and error["message"] and error["type"] == "invalid_request_error"


def test_oversize_body_is_answered_with_413(server):
    with Raw(server) as raw:
        raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17000000\r\n\r\n")
        raw.send(b" " * 17_000_000)
        status, headers, body = raw.read_answer()
    assert status == 413 and headers["connection"] == "close" and "error" in json.loads(body)


def test_methods_and_paths(server):
    status, headers, _ = ask(server, b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == 405 and "POST" in headers["allow"]
    assert ask(server, b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 404
    with Raw(server) as raw:
        raw.send(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"content-length: " in raw.read_until(b"\r\n\r\n").lower()
        assert raw.read_answer()[0] == 200
    assert ask(server, b"nonsense\r\n\r\n")[0] == 400


def test_streams_end_with_done_and_keep_the_connection(server):
    with Raw(server) as raw:
        raw.send(post(CHAT | {"stream": True}))
        stream = raw.read_until(b"0\r\n\r\n")
        assert b"text/event-stream" in stream and b"data: [DONE]\n\n" in stream
        raw.send(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.read_answer()[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_vanished_client_frees_its_blocks(server, stream):
    assert wait_until(lambda: stats(server)["kv_live_blocks"] == 0)
    with Raw(server) as raw:
        raw.send(post(LONG | {"stream": stream}))
        assert wait_until(lambda: stats(server)["running"] == 1)
        assert stats(server)["kv_live_blocks"] > 0
    assert wait_until(lambda: stats(server)["kv_live_blocks"] == 0, seconds=5)
    assert stats(server)["running"] == 0


def test_a_slow_reader_stalls_nobody_and_gets_everything(server):
    body = LONG | {"max_tokens": 250, "n": 8, "logprobs": True, "top_logprobs": 20}
    with Raw(server, receive_buffer=4096) as slow:
        slow.send(post(body))
        slow.read_until(b"\n\n")
        for _ in range(3):
            assert ask(server, post(CHAT))[0] == 200
        assert wait_until(lambda: stats(server)["running"] == 0, seconds=120)  # the engine does not wait for it
        rest = slow.read_until(b"data: [DONE]\n\n")
    assert rest.count(b'"finish_reason":"length"') == 8


def test_strict_names_alias_and_cors(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--strict-model", "--alias", "mine", "--cors-origin", "*")
    status, headers, body = ask(server, post(CHAT | {"model": "other"}))
    assert status == 404 and json.loads(body)["error"]["code"] == "model_not_found"
    assert headers["access-control-allow-origin"] == "*"
    assert json.loads(ask(server, post(CHAT | {"model": "mine"}))[2])["model"] == "mine"
    preflight = ask(server, b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\n\r\n")
    assert preflight[0] == 204 and "POST" in preflight[1]["access-control-allow-methods"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals_let_running_streams_finish(start_server, tiny_models, sig):
    # The reference kernels: slow enough that the stream still runs when the new request comes.
    server = start_server(tiny_models["tiny-llama"], "--isa", "ref")
    with Raw(server) as running:
        running.send(post(LONG | {"max_tokens": 160}))
        running.read_until(b"\n\n")
        server.process.send_signal(sig)
        assert wait_until(lambda: ask(server, post(CHAT))[0] == 503, seconds=5)
        stream = running.read_until(b"0\r\n\r\n")
        assert b'"finish_reason":"length"' in stream and b"data: [DONE]\n\n" in stream
    assert server.process.wait(10) == 0


def test_a_second_signal_stops_at_once(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"])
    with Raw(server) as running:
        running.send(post(LONG | {"n": 8, "max_tokens": 1900}))
        running.read_until(b"\n\n")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def test_a_taken_port_names_the_way_out(pagoda, server, tiny_models):
    done = pagoda.run("serve", tiny_models["tiny-llama"], "--port", server.port)
    assert done.returncode == 1 and "--port" in done.stderr
