"""The commands as a user meets them: stdout, stderr, exit codes, config file. 0: done; 1: it failed; 2: wrong usage."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from pagoda_process import ROOT, error_of, stdout_of

COMMANDS = ("serve", "run", "tokenize", "eval", "inspect", "bench", "plan", "doctor")
RATES = re.compile(r"^prompt \d+ tokens, [\d.]+ tok/s; answer \d+ tokens, [\d.]+ tok/s$", re.MULTILINE)


@pytest.fixture
def llama(tiny_models):
    return tiny_models["tiny-llama"]


@pytest.fixture
def base_model(tiny_models, tmp_path):
    """tiny-llama without its chat template: the key is renamed, which keeps every offset."""
    data = tiny_models["tiny-llama"].read_bytes()
    assert data.count(b"tokenizer.chat_template") == 1
    path = tmp_path / "base.gguf"
    path.write_bytes(data.replace(b"tokenizer.chat_template", b"tokenizer.chat_templote"))
    return path


# ---- help and usage --------------------------------------------------------------------------------------------------


def test_help(pagoda):
    text = stdout_of(pagoda.run("--help"))
    for command in COMMANDS:
        assert command in text
        assert f"Example: pagoda {command} " in stdout_of(pagoda.run(command, "--help"))
    assert "help-markdown" not in text
    assert re.fullmatch(r"pagoda \d+\.\d+\.\d+\n", stdout_of(pagoda.run("--version")))


def test_help_shows_defaults(pagoda):
    words = " ".join(stdout_of(pagoda.run("serve", "--help")).split())
    for default in ("127.0.0.1", "8000", "refuse"):
        assert f"(default {default})" in words


def test_options_page_is_current(pagoda):
    page = stdout_of(pagoda.run("help-markdown"))
    assert (ROOT / "docs" / "options.md").read_text() == page, "run: pagoda help-markdown > docs/options.md"


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "subcommand"),
        (["bake"], "bake"),
        (["eval"], "model"),
        (["run", "MODEL", "hi", "--threads", "0"], "--threads"),
        (["run", "MODEL", "hi", "--temperature", "hot"], "--temperature"),
        (["run", "MODEL", "hi", "--temperature", "nan"], "--temperature"),
        (["run", "MODEL", "hi", "--top-p", "1.5"], "--top-p"),
        (["run", "MODEL", "hi", "--seed", "x"], "--seed: Value x not in range 0 to 18446744073709551615"),
        (["run", "MODEL", "hi", "--kv-format", "q3"], "--kv-format"),
        (["run", "MODEL", "hi", "--kv-memory", "lots"], "--kv-memory"),
        (["run", "MODEL", "hi", "--memory", "lots"], "--memory"),
        (["run", "MODEL", "hi", "--memory", ""], "--memory"),
        (["run", "MODEL", "hi", "--kv-disk", "kv", "--kv-disk-size", "0"], "--kv-disk-size"),
        (["run", "MODEL", "hi", "--kv-disk", ""], "--kv-disk"),
        (["run", "MODEL", "hi", "--kv-redis", ""], "--kv-redis"),
        (["run", "MODEL", "hi", "--kv-secret", ""], "--kv-secret"),
        (["run", "MODEL", "hi", "--kv-secret", "/dev/null"], "--kv-secret"),
        (["run", "MODEL", "hi", "--isa", "sse"], "--isa"),
        (["run", "MODEL", "hi", "--arithmetic", "int3"], "--arithmetic"),
        (["run", "MODEL", "hi", "--chat-template", "nowhere.jinja"], "--chat-template"),
        (["run", "MODEL", "hi", "--raw", "--system", "be kind"], "--system"),
        (["run", "MODEL", "hi", "--frobnicate"], "--frobnicate"),
        (["serve", "MODEL", "--port", "99999"], "--port: Value 99999 not in range 0 to 65535; see pagoda serve --help"),
        (["eval", "MODEL"], "--ids"),
        (["eval", "MODEL", "--ids", "a", "--text", "b"], "--text"),
        (["tokenize", "MODEL"], "--file"),
    ],
)
def test_wrong_usage(pagoda, llama, arguments, named):
    done = pagoda.run(*[llama if argument == "MODEL" else argument for argument in arguments])
    line = error_of(done, 2)
    assert line.startswith("pagoda: ") and named in line


def test_missing_instruction_set(pagoda, llama):
    flags = open("/proc/cpuinfo").read()
    lacking = [isa for isa, flag in (("amx", "amx_bf16"), ("avx512", "avx512_vnni"), ("avx2", "avx2")) if flag not in flags]
    if not lacking:
        pytest.skip("this CPU has them all")
    line = error_of(pagoda.run("run", llama, "hi", "--isa", lacking[0]), 2)
    assert f"this CPU lacks {lacking[0]}" in line


# ---- files that are not models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["eval", "run", "inspect", "tokenize", "serve", "bench"])
def test_missing_and_truncated_files(pagoda, llama, tmp_path, command):
    more = {"eval": ["--ids", pagoda.ids_file((1, 2))], "run": ["hi"], "tokenize": ["hi"]}.get(command, [])
    assert "nowhere" in error_of(pagoda.run(command, "nowhere", *more), 1)
    data = llama.read_bytes()
    for size in (0, 3, 20, 5000, len(data) - 100):
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(data[:size])
        assert "broken.gguf" in error_of(pagoda.run(command, broken, *more), 1)


@pytest.mark.parametrize("path", [".", "/dev/zero"])
def test_what_is_no_file(pagoda, llama, path):
    path = os.path.abspath(path)
    assert f"{path} is no regular file" in error_of(pagoda.run("inspect", path), 1)
    for command, option in (("tokenize", "--file"), ("eval", "--text"), ("eval", "--ids")):
        assert error_of(pagoda.run(command, llama, option, path), 1).startswith("pagoda: ")


def test_an_empty_text_is_named(pagoda, llama, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert error_of(pagoda.run("eval", llama, "--ids", empty), 1) == f"pagoda: there are no tokens to evaluate in {empty}"


# ---- output that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("inspect",), ("tokenize", "Hello"), ("run", "Hello", "--raw", "-n", 4), ("run", "Hello", "--json", "-n", 4)],
)
def test_full_disk(pagoda, llama, arguments):
    command, *rest = map(str, arguments)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [pagoda.binary, command, llama, *rest], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "cannot write the output: No space left on device" in done.stderr


def test_run_stops_when_nobody_reads(pagoda, llama):
    """`| head`: the answer ends with the first piece that finds no reader, not with the context."""
    done = subprocess.Popen(
        [pagoda.binary, "run", llama, "Hello", "--raw", "--seed", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    done.stdout.close()
    assert b"cannot write the output: Broken pipe" in done.stderr.read()
    assert done.wait(60) == 1


def test_smallest_context(pagoda, llama):
    """The automatic KV budget of a context far smaller than an extent."""
    assert stdout_of(pagoda.run("run", llama, "Hi", "--raw", "-n", 2, "-c", 64))


# ---- run -------------------------------------------------------------------------------------------------------------


def test_run_answers_on_stdout_alone(pagoda, llama):
    done = pagoda.run("run", llama, "hello", "-n", 8, "--seed", 5)
    text = stdout_of(done)
    assert text.strip()
    assert RATES.fullmatch(done.stderr.strip())
    assert "\033" not in done.stdout + done.stderr
    assert stdout_of(pagoda.run("run", llama, "hello", "-n", 8, "--seed", 5)) == text
    assert stdout_of(pagoda.run("run", llama, "hello", "-n", 8, "--seed", 6)) != text
    assert stdout_of(pagoda.run("run", llama, "-n", 8, "--seed", 5, input="hello\n")) == text
    assert stdout_of(pagoda.run("run", llama, "hello", "-n", 8, "--seed", 5, "-t", 1, "--kv-cache", "off")) == text


def test_run_without_prompt(pagoda, llama):
    assert "PROMPT" in error_of(pagoda.run("run", llama), 1)


def test_run_json(pagoda, llama):
    done = pagoda.run("run", llama, "hello", "-n", 6, "--seed", 5, "--json")
    answer = json.loads(stdout_of(done))
    plain = stdout_of(pagoda.run("run", llama, "hello", "-n", 6, "--seed", 5))
    assert plain.rstrip("\n") == answer["text"].rstrip("\n")
    usage = answer["usage"]
    assert usage["completion_tokens"] == 6 and answer["finish_reason"] == "length"
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert answer["timings"]["prefill_tokens_per_s"] > 0 and answer["timings"]["decode_tokens_per_s"] > 0
    assert answer["model"] == "tiny-llama"


def test_run_uses_the_chat_template_unless_raw(pagoda, llama, base_model):
    def prompt_tokens(model, *options):
        return json.loads(stdout_of(pagoda.run("run", model, "hello", "-n", 1, "--json", *options)))["usage"]["prompt_tokens"]

    ids = json.loads(stdout_of(pagoda.run("tokenize", llama, "hello", "--bos", "auto")))
    assert prompt_tokens(llama, "--raw") == len(ids)
    assert prompt_tokens(base_model) == len(ids)
    chat = prompt_tokens(llama)
    assert chat > len(ids)
    assert prompt_tokens(llama, "--system", "Be kind.") > chat


def test_run_template_file(pagoda, llama, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}")
    asked = ["run", llama, "hello", "-n", 5, "--seed", 1]
    assert stdout_of(pagoda.run(*asked, "--chat-template", template)) == stdout_of(pagoda.run(*asked, "--raw"))
    template.write_text("{{ raise_exception('no chatting today') }}")
    assert "no chatting today" in error_of(pagoda.run(*asked, "--chat-template", template), 1)


def test_run_prompt_beyond_the_context(pagoda, llama):
    line = error_of(pagoda.run("run", llama, "hello " * 200, "-c", 100, "--raw"), 1)
    assert "100" in line and re.search(r"\d+ tokens", line)


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal."""

    def __init__(self, *command, **environment):
        self.side, other = pty.openpty()
        env = {"TERM": "xterm", **os.environ, **environment}
        self.process = subprocess.Popen(list(map(str, command)), stdin=other, stdout=other, stderr=other, env=env, start_new_session=True)
        os.close(other)
        self.seen = ""
        self.at = 0  # what was waited for so far ends here

    def read_until(self, text, seconds=60):
        self.read_while(lambda: text not in self.seen[self.at :], repr(text), seconds)
        self.at = self.seen.index(text, self.at) + len(text)

    def read_more(self, seconds=60):
        """Until something comes after what was waited for."""
        self.read_while(lambda: len(self.seen) == self.at, "anything", seconds)

    def read_while(self, missing, what, seconds):
        deadline = time.monotonic() + seconds
        while missing():
            ready, _, _ = select.select([self.side], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{what} did not come in:\n{self.seen}"
            try:
                data = os.read(self.side, 65536)
            except OSError:
                data = b""
            assert data, f"it ended before {what}:\n{self.seen}"
            self.seen += data.decode(errors="replace")

    def type(self, text):
        os.write(self.side, text.encode())

    def end(self):
        code = self.process.wait(30)
        os.close(self.side)
        return code


@pytest.fixture
def terminal(pagoda):
    opened = []

    def open_terminal(*arguments, **environment):
        opened.append(Terminal(pagoda.binary, *arguments, **environment))
        return opened[-1]

    yield open_terminal
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_chat_in_a_terminal(terminal, llama):
    chat = terminal("run", llama, "-n", 5, "--temperature", 0)
    chat.read_until("> ")
    chat.type("hello\n")
    chat.read_until("tok/s")
    first = int(re.search(r"prompt (\d+) tokens", chat.seen).group(1))
    chat.read_until("> ")
    chat.type("hello\n")
    chat.read_until("answer")
    assert int(re.findall(r"prompt (\d+) tokens", chat.seen)[-1]) > 2 * first - 5  # it remembers
    chat.read_until("> ")
    chat.type("/clear\n")
    chat.read_until("> ")
    chat.type("hello\n")
    chat.read_until("answer")
    assert int(re.findall(r"prompt (\d+) tokens", chat.seen)[-1]) == first
    assert "\033[" in chat.seen
    chat.read_until("> ")
    chat.type("\x04")  # Ctrl-D
    assert chat.end() == 0


def test_interrupts_in_a_terminal(terminal, base_model):
    # The reference kernels: 2,000 tokens take seconds, so the answer still runs when the signal comes.
    chat = terminal("run", base_model, "--temperature", 0, "--isa", "ref", NO_COLOR="1")
    chat.read_until("> ")
    chat.type("hello\n")
    chat.read_until("hello\r\n")
    chat.read_more()
    chat.process.send_signal(signal.SIGINT)  # stops the answer
    chat.read_until("answer ")
    chat.read_until("> ")
    assert "\033[" not in chat.seen
    assert int(re.search(r"answer (\d+) tokens", chat.seen).group(1)) < 2000
    chat.process.send_signal(signal.SIGINT)  # ends the chat
    assert chat.end() == 0


# ---- tokenize, eval, inspect -----------------------------------------------------------------------------------------


def test_tokenize(pagoda, llama, tmp_path):
    ids = json.loads(stdout_of(pagoda.run("tokenize", llama, "the cat")))
    assert ids and all(isinstance(i, int) for i in ids)
    file = tmp_path / "text"
    file.write_text("the cat")
    assert json.loads(stdout_of(pagoda.run("tokenize", llama, "--file", file))) == ids
    assert json.loads(stdout_of(pagoda.run("tokenize", llama, "--file", "-", input="the cat"))) == ids
    plain = json.loads(stdout_of(pagoda.run("tokenize", llama, "<|im_end|>", "--bos", "off")))
    parsed = json.loads(stdout_of(pagoda.run("tokenize", llama, "<|im_end|>", "--bos", "off", "--parse-special")))
    assert len(parsed) == 1 < len(plain)
    with_bos = json.loads(stdout_of(pagoda.run("tokenize", llama, "a", "--bos", "on")))
    assert len(with_bos) == len(json.loads(stdout_of(pagoda.run("tokenize", llama, "a", "--bos", "off")))) + 1
    assert json.loads(stdout_of(pagoda.run("tokenize", llama, ""))) == []


def test_eval(pagoda, llama, tmp_path):
    result = pagoda.evaluate(llama, (20, 30, 40, 50))
    assert result["tokens"] == 4 and result["ppl"] > 1 and len(result["logits_hash"]) == 16
    ids = tmp_path / "ids"
    ids.write_text("[20, 30,\n40\t50]")
    done = pagoda.run("eval", llama, "--ids", ids, "--kv-cache", "off")
    assert json.loads(stdout_of(done)) == result
    assert done.stderr == ""
    text = tmp_path / "text"
    text.write_text("hello there")
    assert json.loads(stdout_of(pagoda.run("eval", llama, "--text", text)))["tokens"] > 2
    top = pagoda.evaluate(llama, (20, 30), "--top-logits", 3)["top_logits"]
    assert len(top) == 3 and top[0][1] >= top[1][1] >= top[2][1]


@pytest.mark.parametrize("content, said", [("1 2 x", "byte 4"), ("5 99999", "99999"), ("", "no tokens"), ("1 -1", "-1")])
def test_eval_of_bad_ids(pagoda, llama, tmp_path, content, said):
    ids = tmp_path / "ids"
    ids.write_text(content)
    assert said in error_of(pagoda.run("eval", llama, "--ids", ids), 1)


def test_inspect(pagoda, tiny_models):
    gemma = json.loads(stdout_of(pagoda.run("inspect", tiny_models["tiny-gemma3"], "--json")))
    assert gemma["architecture"] == "gemma3" and gemma["attention"] == "MQA" and gemma["head_dim"] == 256
    assert gemma["sliding_window"] == 64 and gemma["window_layers"] == 6
    assert gemma["kv"]["bf16"] == {
        "note": "",
        "bytes_per_token": 1024,
        "window_bytes_per_token": 6144,
        "bytes_per_context": 1024 * 2048 + 6144 * (64 + 32),  # a window may begin and end within blocks
    }
    assert gemma["can_be_served"] and gemma["unsupported"] == []
    assert sum(t["tensors"] for t in gemma["types"].values()) == gemma["tensors"]
    words = {"tiny-llama": "GQA", "tiny-llama-mha": "MHA", "tiny-llama-mqa": "MQA"}
    for name, word in words.items():
        table = stdout_of(pagoda.run("inspect", tiny_models[name]))
        assert word in table and "this model can be served" in table


def test_inspect_says_what_is_not_supported(pagoda, llama, tmp_path):
    data = llama.read_bytes()
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(data.replace(b"smollm", b"smolln", 1))
    done = pagoda.run("inspect", strange)
    assert "smolln" in stdout_of(done) and "this model cannot be served" in done.stdout
    assert not json.loads(stdout_of(pagoda.run("inspect", strange, "--json")))["can_be_served"]


# ---- config file -----------------------------------------------------------------------------------------------------


def test_config_file(pagoda, llama, tmp_path):
    config = tmp_path / "pagoda.toml"
    config.write_text(f'model = "{llama}"\nmax-tokens = 3\ntemperature = 0\njson = true\nport = 1\nraw = true\nkv-memory = "8M"\n')
    answer = json.loads(stdout_of(pagoda.run("run", "--config", config, input="hello")))
    assert answer["usage"]["completion_tokens"] == 3
    answer = json.loads(stdout_of(pagoda.run("run", "--config", config, "-n", 2, input="hello")))
    assert answer["usage"]["completion_tokens"] == 2
    asked = ["run", llama, "hello", "--config", config]
    assert json.loads(stdout_of(pagoda.run(*asked)))["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "content, said",
    [("frob = 1", "frob"), ("port = [1]", "port"), ("threads = 0", "--threads"), ("= 3", "pagoda.toml:1"), ("config = 'x'", "config")],
)
def test_bad_config_file(pagoda, llama, tmp_path, content, said):
    config = tmp_path / "pagoda.toml"
    config.write_text(content)
    done = pagoda.run("serve", llama, "--config", config)
    assert done.returncode == 2 and said in done.stderr


# ---- serve -----------------------------------------------------------------------------------------------------------


def test_serve_says_where_it_is(pagoda, llama, base_model):
    for model, endpoint in ((llama, "/v1/chat/completions"), (base_model, "/v1/completions")):
        process = subprocess.Popen(
            [pagoda.binary, "serve", model, "--port", "0", "-t", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            line = process.stdout.readline()
            assert re.search(r"ready at http://127\.0\.0\.1:[1-9]\d*/v1", line)
            curl = line[line.index("curl") :].strip()
            assert endpoint in curl
            shortened = curl.replace('-d \'{', '-d \'{"max_tokens":2,"n":1,')
            if subprocess.run(["which", "curl"], capture_output=True).returncode == 0:
                shortened = re.sub(r'("max_tokens":2,.*)"max_tokens":32', r'\1"user":"me"', shortened)
                answer = subprocess.run(["sh", "-c", shortened], capture_output=True, text=True, timeout=60)
                assert json.loads(answer.stdout)["choices"], answer
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
