"""Fixtures that every Python test shares: the binary, the generated models, the real models by name, servers."""

import os
import subprocess
import sys

import pytest
import tiny_models as generator
from pagoda_process import ROOT, Pagoda, Server


@pytest.fixture(scope="session")
def pagoda(tmp_path_factory):
    """The binary: $PAGODA_BIN, else the release build's."""
    binary = ROOT / os.environ.get("PAGODA_BIN", "build/release/pagoda")
    if not binary.is_file():
        pytest.fail(f"{binary} is missing: run `make build`, or set PAGODA_BIN")
    return Pagoda(binary, tmp_path_factory.mktemp("ids"))


@pytest.fixture(scope="session")
def tiny_models():
    """{name: path} of the generated models, in build/tiny_models, each checked by SHA-256."""
    return generator.generate(ROOT / "build" / "tiny_models")


@pytest.fixture(scope="session")
def real_model():
    """real_model(NAME) is the path of a model of models/recipes.toml, fetched if it is not there."""
    paths = {}

    def path_of(name):
        if name not in paths:
            command = [sys.executable, str(ROOT / "scripts" / "fetch_model"), name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.fail(
                    f"the model {name} is not here and could not be fetched: {done.stderr.strip()}\n"
                    f"Get it with: scripts/fetch_model {name}"
                )
            paths[name] = done.stdout.strip().splitlines()[-1]
        return paths[name]

    return path_of


@pytest.fixture
def start_server(pagoda, tmp_path):
    """start_server(MODEL, *options, tls=None) -> Server; whatever still runs when the test ends is stopped and must end with 0."""
    servers = []

    def start(model, *options, tls=None):
        servers.append(Server(pagoda, model, *options, log_path=tmp_path / f"server{len(servers)}.log", tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log_end()


@pytest.fixture(scope="session")
def server(pagoda, tiny_models, tmp_path_factory):
    """One server of tiny-llama for all tests that only ask it questions."""
    server = Server(pagoda, tiny_models["tiny-llama"], log_path=tmp_path_factory.mktemp("server") / "server.log")
    yield server
    assert server.stop() == 0, server.log_end()
