"""Cached prefixes that outlive their process: what one finds computed by another, and that it answers the same."""

import json
import re

import pytest
from pagoda_process import error_of

PROMPT = " ".join(f"word{i % 37}" for i in range(120))


@pytest.fixture
def llama(tiny_models):
    return tiny_models["tiny-llama"]


def answer(pagoda, model, folder, *arguments):
    done = pagoda.run(
        "run", model, PROMPT, "-n", 8, "--temperature", 0, "--raw", "--json", "--kv-memory", "16M",
        "--kv-disk", folder, "--kv-disk-size", "64M", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_next_process_finds_them(pagoda, llama, tmp_path):
    folder = tmp_path / "kv"
    first, second = answer(pagoda, llama, folder), answer(pagoda, llama, folder)
    assert first["usage"]["cached_tokens"] == 0
    assert second["usage"]["cached_tokens"] >= 64
    assert first["text"] == second["text"]
    assert (folder / "kv-secret").stat().st_size == 32
    assert (folder / "kv-secret").stat().st_mode & 0o777 == 0o600


def test_not_with_another_format(pagoda, llama, tmp_path):
    answer(pagoda, llama, tmp_path)
    assert answer(pagoda, llama, tmp_path, "--kv-format", "bf16")["usage"]["cached_tokens"] == 0


def test_damaged_files_change_no_answer(pagoda, llama, tmp_path):
    first = answer(pagoda, llama, tmp_path)
    for segment in tmp_path.glob("*.seg"):
        data = bytearray(segment.read_bytes())
        for at in range(len(data) // 8, len(data), 997):
            data[at] ^= 0x10
        segment.write_bytes(data)
    assert answer(pagoda, llama, tmp_path)["text"] == first["text"]


@pytest.mark.parametrize(
    "options, named, why",
    [
        (["--kv-disk", "/proc/x"], "--kv-disk", "cannot make the folder /proc/x"),
        (["--kv-disk", "DIR/missing/kv"], "--kv-disk", "cannot make the folder"),
        (["--kv-disk", "DIR/file"], "--kv-disk", "cannot write into"),
        (["--kv-disk", "DIR/no-sessions"], "--kv-disk", "for sessions"),
        (["--kv-disk", "DIR/bad-secret"], "--kv-disk", "is not a secret"),
        (["--kv-disk", "DIR/kv", "--kv-disk-size", "1K"], "--kv-disk-size", "hold no block"),
        (["--kv-disk", "DIR/kv", "--kv-disk-size", "x"], "--kv-disk-size", "is not a size"),
        (["--kv-disk", "DIR/kv", "--kv-disk-write-rate", "x"], "--kv-disk-write-rate", "is not a size"),
        (["--kv-redis", "http://localhost"], "--kv-redis", "redis://"),
        (["--kv-redis", "redis://localhost:x"], "--kv-redis", "port"),
        (["--kv-secret", "DIR/missing/secret"], "--kv-secret", "cannot make"),
        (["--kv-secret", "DIR/file"], "--kv-secret", "is not a secret"),
        (["--kv-secret", "DIR"], "--kv-secret", "cannot read"),
    ],
)
def test_a_start_that_fails_names_the_option(pagoda, llama, tmp_path, options, named, why):
    (tmp_path / "file").write_text("x")
    for folder, name in (("no-sessions", "sessions"), ("bad-secret", "kv-secret")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("x")
    words = [word.replace("DIR", str(tmp_path)) for word in options]
    line = error_of(pagoda.run("run", llama, "hi", "-n", 1, *words), 2)
    assert re.findall(r"--kv-[a-z-]+", line) == [named] and why in line


@pytest.mark.parametrize(
    "options, said",
    [
        (["--kv-disk-size", "10G"], "this needs --kv-disk DIR (--kv-disk-size)"),
        (["--kv-disk-size", "auto", "--kv-redis", "redis://localhost"], "this needs --kv-disk DIR (--kv-disk-size)"),
        (["--kv-disk-write-rate", "1M"], "this needs --kv-disk DIR (--kv-disk-write-rate)"),
        (["--kv-redis-ttl", "60", "--kv-disk", "DIR"], "this needs --kv-redis URL (--kv-redis-ttl)"),
    ],
)
def test_an_option_of_a_tier_that_is_not_there(pagoda, llama, options, said):
    for command in (["run", llama, "hi"], ["serve", llama]):
        assert error_of(pagoda.run(*command, *options), 2) == f"pagoda: {said}"


def test_a_disk_that_holds_no_block(pagoda, llama, tmp_path):
    line = error_of(pagoda.run("run", llama, "hi", "--kv-disk", tmp_path / "kv", "--kv-disk-size", 1000), 2)
    least = int(re.search(r"at least (\d+) are needed", line).group(1))
    assert "--kv-disk-size" in line
    assert pagoda.run("run", llama, "hi", "-n", 2, "--kv-disk", tmp_path / "kv", "--kv-disk-size", least).returncode == 0


def test_a_redis_that_is_not_there(pagoda, llama):
    plain = pagoda.run("run", llama, PROMPT, "-n", 8, "--temperature", 0, "--raw", "--json")
    lost = pagoda.run(
        "run", llama, PROMPT, "-n", 8, "--temperature", 0, "--raw", "--json", "--kv-redis", "redis://127.0.0.1:1"
    )
    assert lost.returncode == 0, lost.stderr
    assert json.loads(lost.stdout)["text"] == json.loads(plain.stdout)["text"]
