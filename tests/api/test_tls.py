"""The API over TLS, with certificates that the openssl command makes: real clients, wrong files, renewal, drains."""

import contextlib
import json
import socket
import ssl
import subprocess
import time

import openai
import pytest
from pagoda_process import Server, error_of

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1}
LONG = CHAT | {"max_tokens": 1500, "ignore_eos": True, "stream": True}


def make_certificate(folder, name, *options):
    """(certificate, key), self-signed for 127.0.0.1."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate, *options]
    subprocess.run(list(map(str, command if "-passout" in options else [*command, "-nodes"])), check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"), "first")


@pytest.fixture(scope="module")
def secure(pagoda, tiny_models, tmp_path_factory, files):
    certificate, key = files
    server = Server(
        pagoda,
        tiny_models["tiny-llama"],
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
        log_path=tmp_path_factory.mktemp("server") / "log",
        tls=ssl.create_default_context(cafile=certificate),
    )
    yield server
    assert server.stop() == 0, server.log_end()


def connect(server, receive_buffer=None):
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    return server.tls.wrap_socket(sock, server_hostname="127.0.0.1")


def post(body):
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.02)


def n_in_engine(server):
    engine = json.loads(server.get("/v1/engine")[1])
    return engine["running"] + engine["waiting"]


def test_openai_over_https(secure):
    http = openai.DefaultHttpxClient(verify=secure.tls)
    with openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0, timeout=600, http_client=http) as client:
        chat = dict(model="x", messages=CHAT["messages"], max_tokens=24, seed=7, temperature=0)
        whole = client.chat.completions.create(**chat).choices[0].message.content
        chunks = client.chat.completions.create(**chat, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
        prompt = "word " * 200_000
        with pytest.raises(openai.BadRequestError, match="context"):
            client.completions.create(model="x", prompt=prompt)


def test_clients_that_trust_nobody_are_not_served_in_the_clear(secure):
    http = openai.DefaultHttpxClient(verify=ssl.create_default_context())
    with openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_plain_http_is_told_the_scheme(secure):
    with socket.create_connection(("127.0.0.1", secure.port), timeout=60) as sock:
        sock.sendall(post(CHAT))
        answer = sock.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 400 ") and "use https://" in answer


def test_a_client_that_vanishes_ends_its_request(secure):
    with connect(secure) as sock:
        sock.sendall(post(LONG))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: n_in_engine(secure) == 1)
    wait_until(lambda: n_in_engine(secure) == 0)


def test_slow_readers_stall_nobody(secure):
    body = LONG | {"logprobs": True, "top_logprobs": 20}
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(secure, receive_buffer=4096)) for _ in range(8)]
        for sock in socks:
            sock.sendall(post(body))
        for _ in range(5):
            assert secure.post("/v1/chat/completions", CHAT)[0] == 200
        text = b""
        while b"[DONE]" not in text and (more := socks[0].recv(65536)):
            text += more
        assert b"[DONE]" in text
    wait_until(lambda: n_in_engine(secure) == 0)


def test_half_handshakes_stall_nobody(secure):
    with contextlib.ExitStack() as stack:
        for i in range(200):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", secure.port), timeout=60))
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[: i % 10])
        assert secure.post("/v1/chat/completions", CHAT)[0] == 200


def test_a_renewed_certificate_needs_no_restart(start_server, tiny_models, tmp_path):
    certificate, key = make_certificate(tmp_path, "old")
    trust = ssl.create_default_context(cafile=certificate)
    server = start_server(tiny_models["tiny-llama"], "--tls-cert", certificate, "--tls-key", key, tls=trust)
    new_certificate, new_key = make_certificate(tmp_path, "new")
    trust.load_verify_locations(new_certificate)

    def name_of_peer():
        with connect(server) as sock:
            return sock.getpeercert()["subject"][0][0][1]

    assert name_of_peer() == "old"
    new_certificate.rename(certificate)
    new_key.rename(key)
    wait_until(lambda: name_of_peer() == "new")
    assert server.post("/v1/chat/completions", CHAT)[0] == 200


def test_files_that_are_wrong_end_the_start(pagoda, tiny_models, files, tmp_path):
    certificate, key = files
    _, other_key = make_certificate(tmp_path, "other")
    locked_certificate, locked_key = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    (tmp_path / "text").write_text("no PEM\n")

    def error_with(*options):
        return error_of(pagoda.run("serve", tiny_models["tiny-llama"], "--port", 0, *options), 1)

    assert "No such file" in error_with("--tls-cert", tmp_path / "absent")
    assert "no private key in PEM" in error_with("--tls-cert", certificate)
    assert f"{tmp_path / 'text'}: there is no certificate in PEM" in error_with("--tls-cert", tmp_path / "text")
    assert f"does not belong to the certificate in {certificate}" in error_with("--tls-cert", certificate, "--tls-key", other_key)
    assert "has a passphrase" in error_with("--tls-cert", locked_certificate, "--tls-key", locked_key)
    done = pagoda.run("serve", tiny_models["tiny-llama"], "--tls-key", key)
    assert "--tls-cert FILE" in error_of(done, 2)
