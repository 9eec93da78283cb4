"""Drives the pagoda binary from tests: one-shot commands, `eval` with memoised results, a server on a free loopback port.

Contract: paths and ports are the caller's; nothing here outlives its object; processes are stopped by their own id.
"""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND_SECONDS = 900
START_SECONDS = 120  # a sanitizer build starts slowly
STOP_SECONDS = 30


class IsaMissing(Exception):
    """The machine lacks the instruction set that the test forced."""


class Pagoda:
    """The binary; ids files go into work_folder."""

    def __init__(self, binary, work_folder):
        self.binary, self.work_folder = Path(binary), Path(work_folder)
        os.environ["XDG_CACHE_HOME"] = str(self.work_folder / "cache")  # what the user probed is not what `auto` takes here

    def run(self, *arguments, **options):
        """CompletedProcess with text output; never raises on a non-zero exit."""
        command = [str(self.binary), *map(str, arguments)]
        defaults = dict(capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL)
        if "input" in options:
            defaults.pop("stdin")
        return subprocess.run(command, **defaults | options)

    @functools.cache
    def evaluate(self, model, ids, *options):
        """The JSON of `pagoda eval MODEL --ids ... --json OPTIONS`; ids is a tuple. Memoised for the session."""
        done = self.run("eval", model, "--ids", self.ids_file(ids), "--json", *options)
        if done.returncode != 0 and re.search(r"this CPU lacks", done.stderr, re.IGNORECASE):
            raise IsaMissing(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, f"{' '.join(done.args)}\nexit code {done.returncode}\n{done.stderr[-4000:]}"
        return json.loads(done.stdout)

    @functools.cache
    def ids_file(self, ids):
        path = self.work_folder / f"ids_{abs(hash(ids)):x}_{len(ids)}.txt"
        path.write_text(" ".join(map(str, ids)))
        return path


def stdout_of(done):
    """The output of a command that must have succeeded."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(done, code):
    """The one line that a failed command says."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`pagoda serve MODEL` on a free loopback port; ready when constructed, its log in log_path. tls: an ssl.SSLContext that
    trusts the certificate of its options."""

    def __init__(self, pagoda, model, *options, log_path, tls=None):
        self.port, self.log_path, self.tls = free_port(), Path(log_path), tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        command = [pagoda.binary, "serve", model, "--host", "127.0.0.1", "--port", self.port, "--kv-probe", "off", *options]
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
        )
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self):
        return self.process.pid

    def log_end(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log_end()}"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5, context=self.tls) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server was not ready in {START_SECONDS} s:\n{self.log_end()}")

    def get(self, path):
        """(status, body text) of a GET; errors are answers too."""
        return self.exchange(urllib.request.Request(self.url + path))

    def post(self, path, body):
        """(status, body text) of a POST of JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.exchange(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}))

    def exchange(self, request):
        try:
            with urllib.request.urlopen(request, timeout=COMMAND_SECONDS, context=self.tls) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def stop(self, sig=signal.SIGTERM):
        """Asks the server to end and returns its exit code; a server that does not end in time fails the test."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end within {STOP_SECONDS} s of a signal:\n{self.log_end()}")
        self.log.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
