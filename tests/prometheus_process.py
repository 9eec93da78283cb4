"""Debian's Prometheus on a free loopback port, for tests: scrapes what it is told to, keeps its data in a folder of the test's, is stopped by
its own process id. And a reader of the text that it scrapes."""

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from pagoda_process import ROOT, free_port

START_SECONDS = 60
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"  # scripts/setup puts it there
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def program(name):
    return str(UNPACKED / name) if (UNPACKED / name).is_file() else shutil.which(name) or name


class Prometheus:
    """Running and ready when constructed."""

    def __init__(self, config, folder):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log_path = folder / "prometheus.log"
        self.log = open(self.log_path, "w")
        command = [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return
            except OSError:
                log = self.log_path.read_text()[-2000:]
                assert self.process.poll() is None and time.monotonic() < deadline, f"Prometheus is not ready:\n{log}"
                time.sleep(0.05)

    def get(self, path, **parameters):
        """The data of an API call; what is refused is an error with Prometheus' own words."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression):
        """[(labels, value)] now."""
        found = self.get("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Scrape:
    """A scrape's text, read: families {name: (type, help)} and samples {(name, labels): value}, labels as a frozenset of pairs."""

    def __init__(self, text):
        self.families, self.samples = {}, {}
        helps = {}
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name, _, helps_text = line[7:].partition(" ")
                helps[name] = helps_text
            elif line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                assert name not in self.families, f"{name} is there twice"
                self.families[name] = (kind, helps[name])
            elif line:
                match = SAMPLE.match(line)
                assert match, line
                key = (match[1], frozenset(LABEL.findall(match[2] or "")))
                assert key not in self.samples, f"{line} is there twice"
                self.samples[key] = float(match[3])

    def sum(self, name, **labels):
        """Over all series of that name with these labels."""
        return sum(v for (n, l), v in self.samples.items() if n == name and labels.items() <= dict(l).items())

    def label_names(self, family):
        """Of all its series, without le."""
        kind = self.families[family][0]
        names = {family, *(f"{family}_{s}" for s in ("bucket", "sum", "count"))} if kind == "histogram" else {family}
        return {label for (n, l), _ in self.samples.items() if n in names for label, _ in l} - {"le"}
