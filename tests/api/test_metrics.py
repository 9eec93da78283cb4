"""/metrics as its readers see it: counts that agree with the requests made, the names that docs/metrics.md lists and vLLM's dashboards ask
for, and a real Prometheus that scrapes it, applies the rules of deploy/ and answers every query of the Grafana dashboard."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import openai
import pytest
from pagoda_process import ROOT, Server
from prometheus_process import Prometheus, Scrape, program

DEPLOY = ROOT / "deploy"
SCRAPE_EVERY = "500ms"
RATE_OVER = "20s"
# What vLLM 0.30 calls its metrics; ours under vllm: are among them.
VLLM_NAMES = set(
    """num_requests_running num_requests_waiting num_requests_waiting_by_reason num_preemptions_total request_num_preemptions
    engine_sleep_state kv_cache_usage_perc cache_config_info kv_block_lifetime_seconds kv_block_idle_before_evict_seconds
    kv_block_reuse_gap_seconds prefix_cache_queries_total prefix_cache_hits_total external_prefix_cache_queries_total
    external_prefix_cache_hits_total mm_cache_queries_total mm_cache_hits_total prompt_tokens_total prompt_tokens_cached_total
    prompt_tokens_by_source_total generation_tokens_total iteration_tokens_total request_success_total time_to_first_token_seconds
    inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
    request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
    request_generation_tokens request_max_num_generation_tokens request_params_n request_params_max_tokens
    request_prefill_kv_computed_tokens lora_requests_info corrupted_requests_total""".split()
)
# Of these, what says nothing here: sleeping, multimodal input, LoRA, block samples, and reasons for waiting.
VLLM_LACKING = {n for n in VLLM_NAMES if re.search("sleep|mm_cache|lora|corrupted|kv_block_|by_reason", n)}


@pytest.fixture(scope="module")
def measured(pagoda, tiny_models, tmp_path_factory):
    """A server with a tier on disk, which logs JSON."""
    folder = tmp_path_factory.mktemp("measured")
    options = ["--kv-disk", folder / "kv", "--kv-disk-size", "64M", "--log-format", "json"]
    server = Server(pagoda, tiny_models["tiny-llama"], *options, log_path=folder / "server.log")
    yield server
    assert server.stop() == 0, server.log_end()


def scrape(server):
    status, text = server.get("/metrics")
    assert status == 200
    return Scrape(text)


def scrape_when(server, condition):
    """A request's record comes a moment after its answer."""
    deadline = time.monotonic() + 20
    while not condition(found := scrape(server)):
        assert time.monotonic() < deadline, "the records never came"
        time.sleep(0.05)
    return found


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def complete(client, prompt, **options):
    return client.completions.create(model="tiny", prompt=prompt, temperature=0, **options)


def test_counts_agree_with_the_requests_made(measured):
    before = scrape(measured)
    client = client_of(measured)
    done = [complete(client, "one two three " * 8, max_tokens=12, extra_body={"ignore_eos": True}) for _ in range(3)]
    done.append(complete(client, "some choices", max_tokens=5, n=3, extra_body={"ignore_eos": True}))
    stream = complete(client, "a stream", max_tokens=9, stream=True, stream_options={"include_usage": True})
    usages = [answer.usage for answer in done] + [[chunk.usage for chunk in stream if chunk.usage][-1]]
    with pytest.raises(openai.BadRequestError):
        complete(client, "x", max_tokens=4, top_p=7)
    assert measured.get("/v1/nowhere")[0] == 404

    after = scrape_when(measured, lambda s: s.sum("vllm:request_success_total") - before.sum("vllm:request_success_total") >= 5)

    def delta(name, **labels):
        return after.sum(name, **labels) - before.sum(name, **labels)

    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    generated = sum(usage.completion_tokens for usage in usages)
    assert cached > 0
    assert delta("vllm:prompt_tokens_total") == prompt
    assert delta("vllm:prompt_tokens_cached_total") == cached
    assert delta("vllm:prefix_cache_hits_total") + delta("vllm:external_prefix_cache_hits_total") == cached
    assert delta("vllm:prompt_tokens_by_source_total") == prompt
    assert delta("vllm:generation_tokens_total") == generated
    assert delta("vllm:inter_token_latency_seconds_count") == generated - 7  # sequences
    for name in ["time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
                 "request_prompt_tokens", "request_params_n", "request_time_per_output_token_seconds"]:  # fmt: skip
        assert delta(f"vllm:{name}_count") == 5, name
        assert delta(f"vllm:{name}_bucket", le="+Inf") == 5, name
    assert delta("vllm:request_generation_tokens_sum") == generated
    assert delta("vllm:request_params_n_sum") == 7
    assert delta("vllm:request_max_num_generation_tokens_sum") == generated - 10
    assert delta("vllm:request_prefill_kv_computed_tokens_sum") == prompt - cached
    assert delta("pagoda:missed_prompt_tokens_total") == prompt - cached
    assert delta("pagoda:tenant_prompt_tokens_total", tenant="none") == prompt
    assert delta("pagoda:tenant_generation_tokens_total", tenant="none") == generated
    assert delta("pagoda:requests_total", outcome="done") == 5
    assert delta("pagoda:requests_total", outcome="invalid_argument") == 1
    assert delta("pagoda:http_requests_total", route="/v1/completions", status="2xx") == 5
    assert delta("pagoda:http_requests_total", route="/v1/completions", status="4xx") == 1
    assert delta("pagoda:http_requests_total", route="none", status="4xx") == 1
    rows = delta("pagoda:step_rows_total")
    assert rows == delta("vllm:iteration_tokens_total_sum") >= prompt - cached
    states = ["live", "cached", "free", "overhead"]
    assert sum(after.sum("pagoda:kv_bytes", state=s) for s in states) == after.sum("pagoda:kv_budget_bytes")


def test_a_client_that_leaves_is_counted(measured):
    before = scrape(measured)
    stream = complete(client_of(measured), "and on", max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    aborted = dict(finished_reason="abort")
    scrape_when(measured, lambda s: s.sum("vllm:request_success_total", **aborted) > before.sum("vllm:request_success_total", **aborted))


def test_names_are_vllms(measured):
    names = {name.removeprefix("vllm:") for name in scrape(measured).families if name.startswith("vllm:")}
    assert names <= VLLM_NAMES
    assert VLLM_NAMES - names == VLLM_LACKING


def test_docs_list_every_metric(measured):
    """docs/metrics.md has one row for each: name, type, labels, what it says, as the scrape does."""
    complete(client_of(measured), "something to count", max_tokens=2)
    found = scrape_when(measured, lambda s: s.sum("vllm:request_success_total") > 0 and "pagoda:sessions" in s.families)
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| (.*) \|$", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows}
    assert len(listed) == len(rows), "a metric is listed twice"
    scraped = {name: (kind, found.label_names(name), text) for name, (kind, text) in found.families.items()}
    assert listed == scraped


def test_head_has_no_body(measured):
    request = urllib.request.Request(f"{measured.url}/metrics", method="HEAD")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == b""


def test_a_request_leaves_one_line_of_json(measured):
    secret = "a prompt that no log may hold"
    answer = client_of(measured).completions.with_raw_response.create(model="tiny", prompt=secret, max_tokens=4)
    request_id = answer.headers["x-request-id"]
    deadline = time.monotonic() + 20
    while True:
        text = measured.log_path.read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        mine = [line for line in lines if line.get("event") == "request" and line["id"] == request_id]
        if mine:
            break
        assert time.monotonic() < deadline, "there is no line"
        time.sleep(0.02)
    assert len(mine) == 1 and secret not in text
    line = mine[0]
    assert {"time", "level", "id", "tenant", "model", "status", "outcome", "finish", "stream", "prompt_tokens", "cached_tokens",
            "completion_tokens", "queue_ms", "prefill_ms", "decode_ms", "first_token_ms", "total_ms"} <= line.keys()  # fmt: skip
    assert line["outcome"] == "done" and line["completion_tokens"] == answer.parse().usage.completion_tokens
    assert 0 < line["queue_ms"] + line["prefill_ms"] + line["decode_ms"] <= line["total_ms"] + 0.3  # of rounding


def test_content_is_logged_where_it_is_asked_for(start_server, tiny_models):
    server = start_server(tiny_models["tiny-llama"], "--log-content")
    complete(client_of(server), "what is asked", max_tokens=4)
    server.stop()
    assert re.search(r'request id=.* prompt="what is asked" answer=', server.log_path.read_text())


# ---- a real Prometheus -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(measured, tmp_path_factory):
    """Set up as deploy/ says, but for the server's port and how often it looks."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(DEPLOY / "prometheus" / "pagoda.rules.yml", folder)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for old, new in [("127.0.0.1:8000", f"127.0.0.1:{measured.port}"), (": 15s", f": {SCRAPE_EVERY}")]:
        assert old in config
        config = config.replace(old, new)
    (folder / "prometheus.yml").write_text(config)
    running = Prometheus(folder / "prometheus.yml", folder)
    yield running
    running.stop()


def keep_asking(server, stop):
    """Traffic of every kind until told to stop."""
    client = client_of(server)
    for i in range(10**6):
        if stop.is_set():
            return
        prompt = "a shared beginning of every prompt, which is cached. " * 3 + str(i % 5)
        complete(client, prompt, max_tokens=12, n=1 + i % 2, extra_body={"ignore_eos": True})
        list(complete(client, prompt, max_tokens=6, stream=True))
        if i % 4 == 0:
            server.post("/v1/completions", {"prompt": 7.5})


@pytest.fixture(scope="module")
def watched(measured, prometheus):
    """Prometheus after some seconds of traffic that it has seen grow."""
    stop = threading.Event()
    asking = threading.Thread(target=keep_asking, args=(measured, stop))
    asking.start()
    try:
        deadline = time.monotonic() + 60
        growing = f"min(min_over_time(up[{RATE_OVER}])) > 0 and sum(increase(vllm:generation_tokens_total[{RATE_OVER}])) > 100"
        settled = f"{growing} and min(count_over_time(pagoda:kv_wasted_bytes[{RATE_OVER}])) > 3"
        while not prometheus.query(settled):
            assert time.monotonic() < deadline, prometheus.get("targets")
            assert asking.is_alive(), "the traffic has ended"
            time.sleep(0.2)
        yield prometheus
    finally:
        stop.set()
        asking.join()


def panel_queries():
    dashboard = json.loads((DEPLOY / "grafana" / "pagoda.json").read_text())
    return [(p["title"], t["expr"]) for p in dashboard["panels"] for t in p.get("targets", [])]




MAY_BE_EMPTY = {"Sharing"}  # nothing may have run just when the cache was counted


def test_the_dashboards_queries_have_data(watched):
    queries = panel_queries()
    assert len(queries) > 40
    empty = []
    for title, expression in queries:
        expression = expression.replace("$__rate_interval", RATE_OVER)
        expression = re.sub(r"\$(job|instance|model)\b", ".*", expression)
        assert "$" not in expression, (title, expression)
        if not watched.query(expression) and title not in MAY_BE_EMPTY:
            empty.append((title, expression))
    assert not empty


def test_the_dashboards_variables_have_values(watched):
    dashboard = json.loads((DEPLOY / "grafana" / "pagoda.json").read_text())
    for variable in dashboard["templating"]["list"]:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        assert watched.get(f"label/{label}/values", **{"match[]": re.sub(r"\$(job|instance)\b", ".*", selector)}), variable["name"]


def test_the_rules_hold_and_nothing_fires(watched):
    deadline = time.monotonic() + 20
    while True:
        rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in rules):
            break
        assert time.monotonic() < deadline, rules
        time.sleep(0.2)
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    deadline = time.monotonic() + 20
    while missing := {name for name in recorded if not watched.query(name)}:
        assert time.monotonic() < deadline, missing
        time.sleep(0.2)


def test_a_quantile_is_plausible(watched):
    """What Prometheus makes of the gaps lies between the buckets that a scrape shows."""
    (_, p99), = watched.query(f"histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[{RATE_OVER}])))")  # fmt: skip
    assert 0 < p99 < 80


def test_promtool_finds_no_fault():
    for what, file in [("rules", "pagoda.rules.yml"), ("config", "prometheus.yml")]:
        done = subprocess.run([program("promtool"), "check", what, DEPLOY / "prometheus" / file], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_likes_the_scrape(measured):
    status, text = measured.get("/metrics")
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    # It would rather see no colon in a name, and no _total on a histogram: both are vLLM's.
    faults = [l for l in (done.stdout + done.stderr).splitlines() if "':'" not in l and not l.startswith("vllm:iteration_tokens")]
    assert not faults and status == 200
