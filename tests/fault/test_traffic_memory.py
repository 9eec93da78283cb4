"""Clients that would make the server hold more than its memory limit: it stays within the limit, says no clearly, and goes on serving the others."""

import concurrent.futures
import contextlib
import json
import re
import socket
import time

import pytest
from pagoda_process import Server

LIMIT_MIB = 256
BIG_BYTES = 15 << 20
SMALL_CHAT = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 4}


@pytest.fixture(scope="module")
def small_machine(pagoda, real_model, tmp_path_factory):
    server = Server(pagoda, real_model("smollm2"), "--memory", f"{LIMIT_MIB}M", log_path=tmp_path_factory.mktemp("traffic") / "log")
    # The KV memory is all in use before, so that nothing of it is left for what comes.
    for seed in range(2):
        prompt = [(i * 7919 + seed) % 200 + 20 for i in range(8180)]
        assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})[0] == 200
    yield server
    assert server.stop() == 0, server.log_end()


@pytest.fixture(autouse=True)
def within_the_limit(small_machine):
    """Whatever a test sends: the most that was ever resident is within the limit, and a chat is answered right after."""
    yield
    assert most_resident_mib(small_machine) <= LIMIT_MIB
    assert small_machine.post("/v1/chat/completions", SMALL_CHAT)[0] == 200


def most_resident_mib(server):
    with open(f"/proc/{server.pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1)) / 1024


def chat_body(text, **fields):
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}).encode()


def post_head(path, *lines):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *lines, "", ""]).encode()


def connect(server, receive_buffer=0):
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    return sock


def answer_of(sock):
    """(status, headers, body) of the one answer; what the peer does not want to read any more is no error."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := sock.recv(65536):
            data += chunk
            head, found, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            if found and length and len(body) >= int(length.group(1)):
                break
    head, _, body = data.partition(b"\r\n\r\n")
    assert head, "no answer"
    return int(head.split()[1]), head.decode(), body.decode(errors="replace")


def send_whole(server, body):
    """The answer to a chat, sent as fast as it is taken."""
    with connect(server) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(post_head("/v1/chat/completions", f"Content-Length: {len(body)}") + body)
        return answer_of(sock)


def assert_small_chats_pass(server, n=6):
    """Each is answered; a client does what Retry-After says."""
    for _ in range(n):
        for _ in range(10):
            status, text = server.post("/v1/chat/completions", SMALL_CHAT)
            if status != 503:
                break
            time.sleep(1)
        assert status == 200, text


def assert_refused(answer):
    status, head, body = answer
    message = json.loads(body)["error"]["message"]
    assert status in (400, 408, 413, 503), (status, body)
    if status == 413:
        assert re.search(r"larger than \d+ bytes.*--memory", message), message
    if status == 503:
        assert "Retry-After: 1" in head and "no memory" in message, (head, body)


def attack(server, bodies):
    """All bodies at once, small chats among them; the answers to the bodies."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(send_whole, server, body) for body in bodies]
        assert_small_chats_pass(server)
        return [answer.result() for answer in answers]


@pytest.mark.parametrize("n", [8, 32])
def test_chats_of_15_mib(small_machine, n):
    for status, head, body in attack(small_machine, [chat_body("a" * BIG_BYTES)] * n):
        assert status == 413
        assert_refused((status, head, body))


@pytest.mark.parametrize("text", ["a", " ", "日", "<|im_end|>", "1 ", "word ", "\n", "\\"])
def test_as_many_of_the_largest_bodies_as_there_are_connections(small_machine, text):
    most = int(re.search(r"a body up to (\d+) KiB", small_machine.log_path.read_text()).group(1)) * 1024
    escaped = len(json.dumps(text)) - 2
    body = chat_body(text * ((most - 200) // escaped))
    assert most - 400 < len(body) <= most
    for answer in attack(small_machine, [body] * 32):
        assert_refused(answer)


@pytest.mark.parametrize("policy", ["sinks", "drop_turns"])
def test_texts_that_a_context_policy_would_cut(small_machine, policy):
    messages = [{"role": "user", "content": "a" * 20_000}] * 20
    body = json.dumps({"messages": messages, "max_tokens": 2, "context_policy": {"type": policy}}).encode()
    for answer in attack(small_machine, [body] * 16):
        assert answer[0] == 200 or assert_refused(answer) is None


@pytest.mark.parametrize("part", ["[],", "{},", '{"a":{"b":[1]}},', '"",', "1,"])
def test_json_of_many_values(small_machine, part):
    inner = part * (200_000 // len(part))
    body = b'{"messages":[{"role":"user","content":"x","other":[' + inner.encode() + b'0]}],"max_tokens":2}'
    for answer in attack(small_machine, [body] * 16):
        assert answer[0] == 200 or assert_refused(answer) is None


def test_choices_times_prompt(small_machine):
    body = chat_body("word " * 7000, n=128)
    for answer in attack(small_machine, [body] * 8):
        assert_refused(answer)
        assert answer[0] in (400, 503)


def test_bodies_that_never_end(small_machine):
    """Chunks without end on 16 connections, as fast as they are taken."""

    def stream_in():
        with connect(small_machine) as sock:
            with contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(post_head("/v1/chat/completions", "Transfer-Encoding: chunked"))
                chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
                for _ in range(BIG_BYTES // 0x10000):
                    sock.sendall(chunk)
            return answer_of(sock)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(stream_in) for _ in range(16)]
        assert_small_chats_pass(small_machine)
        for answer in answers:
            status, _, _ = answer.result()
            assert status in (413, 503)
            assert_refused(answer.result())


@pytest.mark.parametrize("size", [10_000, 60_000, 400_000])
def test_half_sent_bodies_make_room(small_machine, size):
    """Hundreds of connections that stop in the middle of a body, of any size: chats are served, and the stalled ones are told."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(small_machine)) for _ in range(300)]
        half = post_head("/v1/chat/completions", f"Content-Length: {size}") + b'{"a":"' + b"x" * (size // 2)
        for sock in socks:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(half)
        time.sleep(2.5)
        assert_small_chats_pass(small_machine, n=4)


def test_half_sent_heads_make_room(small_machine):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(connect(small_machine))
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 30_000)
        assert_small_chats_pass(small_machine, n=4)


def test_slow_readers_of_a_session_export(small_machine):
    """Every connection asks for parts of a long session and reads nothing."""
    prompt = "A sentence that is held. " * 800
    request = {"prompt": prompt, "max_tokens": 2, "session_id": "long"}
    assert small_machine.post("/v1/completions", request)[0] == 200
    for _ in range(50):
        status, _ = exported(small_machine, 0)
        if status == 200:
            break
        time.sleep(0.2)  # the model's digest is being made
    assert status == 200
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            sock = stack.enter_context(connect(small_machine, receive_buffer=4096))
            sock.sendall(b"GET /v1/sessions/long/export?part=0 HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        assert_small_chats_pass(small_machine)
        status, body = exported(small_machine, 0)
        assert status in (200, 503)
    part, n = exported(small_machine, 0)[1], 0
    while part and n < 200:
        status, text = small_machine.post(f"/v1/sessions/copy{n}/import", part)
        assert status == 200, "a part is no larger than a body may be: " + text
        part, n = b"", n + 1


def exported(server, part):
    with connect(server) as sock:
        sock.sendall(f"GET /v1/sessions/long/export?part={part} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_slow_readers_of_streams_with_logprobs(small_machine):
    """What they do not read is bounded together, and the others are served."""
    body = chat_body("Count.", stream=True, logprobs=True, top_logprobs=20)
    body = body.replace(b'"max_tokens": 4', b'"max_tokens": 400, "ignore_eos": true')
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            sock = stack.enter_context(connect(small_machine, receive_buffer=4096))
            sock.sendall(post_head("/v1/chat/completions", f"Content-Length: {len(body)}") + body)
        time.sleep(20)
        assert_small_chats_pass(small_machine)


def test_pipelined_requests_wait_in_the_kernel(small_machine):
    """A client that sends a thousand requests ahead fills its socket, not the server."""
    request = b"GET /v1/kv HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 2000 + b"\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            sock = stack.enter_context(connect(small_machine, receive_buffer=4096))
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(request * 1000)
        assert_small_chats_pass(small_machine)
