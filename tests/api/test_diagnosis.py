"""What a server says of itself: /v1/diagnosis and doctor --server."""

import json
import threading


def test_a_server_tells_what_holds_it_back(start_server, pagoda, tiny_models):
    server = start_server(tiny_models["tiny-llama"])
    status, text = server.get("/v1/diagnosis")
    answer = json.loads(text)
    assert status == 200
    assert answer["object"] == "diagnosis"
    assert answer["bound"] == "clients"
    assert abs(sum(answer["time"].values()) - 1) < 0.01
    body = {"prompt": "a b c d", "max_tokens": 60, "ignore_eos": True}
    streams = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(4)]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    answer = json.loads(server.get("/v1/diagnosis")[1])
    assert answer["requests"] == 4
    assert answer["steps"] >= 60
    assert answer["time"]["weights"] > 0
    for finding in answer["findings"]:
        assert {"kind", "bound", "weight", "says", "evidence", "advice"} == set(finding)
    told = pagoda.run("doctor", "--server", server.url)
    assert told.returncode == 0
    assert told.stdout.startswith("bound by ")
    assert "4 requests ended" in told.stdout
    as_json = pagoda.run("doctor", "--server", server.url + "/v1", "--json")
    assert json.loads(as_json.stdout)["object"] == "diagnosis"


def test_nobody_there(pagoda):
    told = pagoda.run("doctor", "--server", "http://127.0.0.1:1")
    assert told.returncode != 0
    assert "cannot connect to 127.0.0.1:1" in told.stderr
    told = pagoda.run("doctor", "--server", "ftp:/x")
    assert told.returncode != 0
    assert "http://127.0.0.1:8000" in told.stderr
