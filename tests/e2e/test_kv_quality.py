"""`eval --compare-kv` and `inspect --probe`: the tables and JSON, what `--kv-format auto` makes of a probe, and wrong usage."""

import json

import pytest
from pagoda_process import error_of, stdout_of


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids"
    path.write_text(" ".join(str(10 + i * i % 240) for i in range(600)))
    return path


@pytest.fixture(scope="module")
def qwen(tiny_models):
    return tiny_models["tiny-qwen2"]


def test_compare_kv(pagoda, qwen, ids):
    command = ["eval", qwen, "--compare-kv", "bf16,q8,auto", "--ids", ids, "-c", 256]
    report = json.loads(stdout_of(pagoda.run(*command, "--json")))
    assert (report["windows"], report["window_tokens"], report["decode_context_tokens"]) == (2, 256, 256)
    bf16, q8, auto = report["formats"]
    assert [bf16["format"], q8["format"], auto["format"]] == ["bf16", "q8", "auto"]
    assert bf16["mean_kl"] == 0 and bf16["same_top"] == 1 and bf16["delta_ppl"] == 0
    assert 0 < auto["mean_kl"] < q8["mean_kl"] <= q8["kl_99_9"]
    assert bf16["bytes_per_token"] > auto["bytes_per_token"] > q8["bytes_per_token"]
    assert all(f["tokens"] == 510 and f["decode_tokens_per_s"] > 0 for f in report["formats"])
    assert report["chunks_change_bits"] is False
    assert report["noise"]["mean_kl"] > 0 and report["yardstick"]["arithmetic"] == "f32"
    for row in ("noise", "yardstick"):  # no format to choose
        assert report[row]["passes"] is None and report[row]["decode_tokens_per_s"] is None
    assert all(isinstance(f["passes"], bool) for f in report["formats"])
    table = stdout_of(pagoda.run(*command))
    assert "gate    PPL at most 0.3 % up; beyond the noise, mean KL" in table
    assert "510 predicted tokens are too few for a verdict" in table
    for word in ("change of PPL", "99.9 % KL", "same top token", "noise", "in f32", "gives the same bits"):
        assert word in table


def test_a_table_by_layer_is_compared_like_a_format(pagoda, qwen, ids):
    command = ["eval", qwen, "--ids", ids, "-c", 256, "--compare-kv"]
    report = json.loads(stdout_of(pagoda.run(*command, "q8;bf16,q8*3;k8v16", "--json")))
    assert [f["format"] for f in report["formats"]] == ["bf16", "q8", "bf16,q8*3", "k8v16"]
    bf16, q8, mixed, _ = [f["bytes_per_token"] for f in report["formats"]]
    assert 4 * mixed == bf16 + 3 * q8
    alone = json.loads(stdout_of(pagoda.run(*command, "bf16,q8*3", "--json")))
    assert alone["formats"][1]["mean_kl"] == report["formats"][2]["mean_kl"]
    lines = stdout_of(pagoda.run(*command, "q8;bf16,q8*1,k16v8*1,q8*1")).splitlines()
    header, *rows = [line for line in lines if "bytes/token" in line or line.startswith(("bf16", "q8"))]
    at = header.index("bytes/token")
    assert [row[:at].strip() for row in rows] == ["bf16", "q8", "bf16,q8*1,k16v8*1,q8*1"]


def test_first_tokens_only(pagoda, qwen, ids):
    report = json.loads(stdout_of(pagoda.run("eval", qwen, "--ids", ids, "-n", 100)))
    assert report["tokens"] == 100


@pytest.mark.parametrize(
    "options, message",
    [
        (["--compare-kv", "q8,q3"], 'unknown KV format "q3"'),
        (["--compare-kv", "q8,,bf16"], 'unknown KV format ""'),
        (["--compare-kv", "q8;bf16,q8*2"], "are of 3 layers"),
        (["--compare-kv", "q8", "--memory", "150M"], "--memory"),
        (["--compare-kv", "q8"], "600 tokens, and a window takes 1024"),
        (["--compare-kv", ",".join(f"q{i}" for i in range(9))], "9 formats beside bf16"),
    ],
)
def test_wrong_usage(pagoda, qwen, ids, options, message):
    assert message in error_of(pagoda.run("eval", qwen, "--ids", ids, *options), 2)


def test_probe_is_kept_and_used(pagoda, qwen, ids, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}

    def run(*arguments):
        return pagoda.run(*arguments, env=env)

    before = json.loads(stdout_of(run("inspect", qwen, "--json")))["kv_format"]
    assert before == {"auto": "k16v8", "arithmetic": before["arithmetic"], "probed": False, "shipped": False, "probe_file": None, "formats": []}
    after = json.loads(stdout_of(run("inspect", qwen, "--probe", "--json")))["kv_format"]
    assert after["probed"] and not after["shipped"] and after["auto"] in [f["format"] for f in after["formats"] if f["passes"]]
    assert f"auto: {after['auto']} in" in stdout_of(run("inspect", qwen))

    done = run("eval", qwen, "--ids", ids, "-c", 1024, "-v")
    assert done.returncode == 0 and f"KV format auto: {after['auto']} (probed" in done.stderr
    assert json.loads(done.stdout) == json.loads(stdout_of(pagoda.run("eval", qwen, "--ids", ids, "--kv-format", "auto", env=env)))
    forced = run("eval", qwen, "--ids", ids, "--kv-format", "bf16", "-v")
    assert "(bf16)" in forced.stderr and "quality gate" not in forced.stderr

    (probe,) = (tmp_path / "cache/pagoda/kv-probes").iterdir()
    assert after["probe_file"] == str(probe)
    text = probe.read_text()
    probe.write_text(text.replace("tokens 4", "tokens 5"))
    damaged = run("eval", qwen, "--ids", ids)
    assert damaged.returncode == 0 and "is damaged or of something else" in damaged.stderr
    probe.write_bytes(b"")
    assert not json.loads(stdout_of(run("inspect", qwen, "--json")))["kv_format"]["probed"]


@pytest.mark.parametrize("arithmetic", ["int8", "bf16", "f32"])
@pytest.mark.parametrize("name", ["smollm2", *(pytest.param(name, marks=pytest.mark.full) for name in ("gemma3", "qwen2.5"))])
def test_recipes_ship_what_auto_takes(pagoda, real_model, ids, tmp_path, name, arithmetic):
    """Fails where the block layout or the numerics revision has changed since: scripts/ship_kv_probes renews it."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    options = (real_model(name), "--arithmetic", arithmetic)
    formats = json.loads(stdout_of(pagoda.run("inspect", *options, "--json", env=env)))["kv_format"]
    assert formats["shipped"], f"nothing is shipped for {name} in {arithmetic}"
    (chosen,) = [f for f in formats["formats"] if f["format"] == formats["auto"]]
    assert chosen["passes"]
    assert "(shipped: probed on" in stdout_of(pagoda.run("inspect", *options, env=env))
    done = pagoda.run("eval", *options, "--ids", ids, "-n", 2, "-v", env=env)
    assert done.returncode == 0 and f"KV format auto: {formats['auto']} (shipped" in done.stderr
