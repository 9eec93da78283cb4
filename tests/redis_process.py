"""Debian's redis-server on a free loopback port, for tests: started, paused, killed and asked by its own process id."""

import signal
import socket
import subprocess
import time

from pagoda_process import free_port

START_SECONDS = 20


class Redis:
    """Running when constructed; keeps nothing on disk. stop() ends it."""

    def __init__(self):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = None
        self.start()

    def start(self):
        options = ["--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", "/tmp"]
        self.process = subprocess.Popen(
            ["redis-server", *map(str, options)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                assert self.command("PING") == b"PONG"
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "redis-server does not start"
                time.sleep(0.02)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None:
            self.resume()
            self.process.kill()
            self.process.wait()

    def command(self, *words):
        """The reply: bytes, an int, None, or a list of them. Raises OSError where nobody answers, and for an error reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as link, link.makefile("rb") as replies:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))
            return self.read(replies)

    def read(self, replies):
        line = replies.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if int(rest) < 0 else replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read(replies) for _ in range(int(rest))]
        raise OSError(f"redis says {line!r}")

    def keys(self):
        return self.command("KEYS", "pagoda:*")
