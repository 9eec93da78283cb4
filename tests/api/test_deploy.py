"""The files of deploy/ that no test can run: they name what is there, and agree with each other."""

import json
import re
import subprocess

import yaml
from pagoda_process import ROOT

DEPLOY = ROOT / "deploy"


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_image_has_the_libraries_that_the_program_links(pagoda):
    linked = subprocess.run(["ldd", pagoda.binary], capture_output=True, text=True, check=True).stdout
    names = {path.rsplit("/", 1)[1] for path in re.findall(r"=> (/\S+)", linked)}
    found = subprocess.run(["dpkg", "-S", *(f"/*/x86_64-linux-gnu/{name}" for name in names)], capture_output=True, text=True).stdout
    packages = {line.split(":")[0] for line in found.splitlines()}
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    final = set(re.findall(r"[\w.+-]+", dockerfile.rsplit("FROM", 1)[1].split("&& rm", 1)[0]))
    assert len(packages) >= 8 and packages <= final, packages - final


def test_the_commands_options_exist(pagoda):
    known = set(re.findall(r"--[\w-]+", pagoda.run("serve", "--help").stdout))
    deployment = documents("kubernetes/pagoda.yaml")[0]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    unit = (DEPLOY / "systemd" / "pagoda.service").read_text()
    used = re.findall(r"--[\w-]+", " ".join(container["args"]))
    used += re.findall(r"(?<= )--[\w-]+|(?<==)--[\w-]+", "\n".join(re.findall(r"^(?:ExecStart|Environment)=.*", unit, re.M)))
    assert len(used) >= 7 and set(used) <= known, set(used) - known


def test_the_manifests_agree():
    deployment, service = documents("kubernetes/pagoda.yaml")
    (monitor,) = documents("kubernetes/podmonitor.yaml")
    (pool,) = documents("kubernetes/inferencepool.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for selector in [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"],
                     monitor["spec"]["selector"]["matchLabels"], pool["spec"]["selector"]["matchLabels"]]:  # fmt: skip
        assert selector.items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports
    assert pool["spec"]["targetPorts"] == [{"number": ports["http"]}]
    (key,) = [env["valueFrom"]["secretKeyRef"] for env in container["env"] if env["name"] == "PAGODA_API_KEY"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"] == key
    assert f"--port={ports['http']}" in container["args"]
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}  # fmt: skip
    assert all(probe["port"] in ports for probe in probes.values())
    mounts, volumes = container["volumeMounts"], pod["spec"]["volumes"]
    assert {m["name"] for m in mounts} == {v["name"] for v in volumes}


def test_the_dashboard_names_only_listed_metrics():
    text = (ROOT / "docs" / "metrics.md").read_text()
    listed = {name: kind for name, kind in re.findall(r"^\| `([\w:]+)` \| (\w+) \|", text, re.M)}
    names = set(listed) | {f"{name}_{s}" for name, kind in listed.items() if kind == "histogram" for s in ("bucket", "sum", "count")}
    rules = [rule for group in documents("prometheus/pagoda.rules.yml")[0]["groups"] for rule in group["rules"]]
    names |= {rule["record"] for rule in rules if "record" in rule}
    panels = json.loads((DEPLOY / "grafana" / "pagoda.json").read_text())["panels"]
    expressions = [t["expr"] for p in panels for t in p.get("targets", [])] + [rule["expr"] for rule in rules]
    used = {name for e in expressions for name in re.findall(r"\b(?:vllm|pagoda|process)[:_][\w:]+", e)}
    assert len(used) > 40 and used <= names, used - names


def test_the_dashboards_panels_do_not_overlap():
    panels = json.loads((DEPLOY / "grafana" / "pagoda.json").read_text())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    cells = set()
    for p in panels:
        at = p["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not mine & cells, p["title"]
        cells |= mine
