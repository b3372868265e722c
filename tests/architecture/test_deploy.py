"""Everything under deploy/ is parsed, and held against what the product really has."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pglast
import pytest
import yaml
from dockerfile_parse import DockerfileParser
from yamllint import linter
from yamllint.config import YamlLintConfig

from gateway.releases.settings import ReleaseSettings
from ratchet.db.roles import Role
from ratchet.decode import DecodeConfig
from ratchet.plan import Arm, Enforcement, PlannedArm, check_arms
from ratchet.settings import GatewaySettings, Process, WorkerSettings, load
from ratchet.telemetry import INSTRUMENTS, Attr, Kind, MetricName, Telemetry, configure
from tests.architecture.repository import PACKAGES, ROOT, files, named

DEPLOY = ROOT / "deploy"
OBSERVABILITY = DEPLOY / "observability"
YAMLLINT = YamlLintConfig(
    "extends: default\nrules: {line-length: {max: 140}, document-start: disable, comments: disable,"
    " truthy: {allowed-values: ['true', 'false']}}"
)


def shipped(*suffixes: str) -> list[Path]:
    """Files under deploy/ with one of these suffixes."""
    return [path for path in files() if path.is_relative_to(DEPLOY) and path.suffix in suffixes]


def example_env() -> dict[str, str]:
    """The variables of example.env."""
    lines = (DEPLOY / "example.env").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def substitute(value: Any, variables: dict[str, str]) -> Any:
    """Compose's interpolation of `${NAME:?}` and `${NAME:-default}`; a required name that is unset fails."""
    if isinstance(value, dict):
        return {key: substitute(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        name, _, default = found["inner"].partition(":-")
        return variables[name.removesuffix(":?")] if not default else variables.get(name, default)

    return re.sub(r"\$\{(?P<inner>[^}]+)\}", replaced, value)


def compose(variables: dict[str, str]) -> dict[str, Any]:
    return substitute(yaml.safe_load((DEPLOY / "compose.yaml").read_text()), variables)


@pytest.mark.parametrize("path", shipped(".yaml"), ids=named)
def test_yaml_is_well_formed(path: Path) -> None:
    assert [str(problem) for problem in linter.run(path.read_text(), YAMLLINT)] == []
    assert yaml.safe_load(path.read_text())


def test_compose_needs_exactly_what_the_example_names() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    used = {name.partition(":")[0] for name in re.findall(r"\$\{([^}]+)\}", text)}
    assert used == set(example_env())


@pytest.mark.parametrize(
    ("service", "kind", "role"),
    [
        ("gateway", GatewaySettings, Role.GATEWAY),
        ("releases", ReleaseSettings, Role.OPERATOR),
        ("feedback-web", WorkerSettings, Role.FEEDBACK),
        ("feedback-worker", WorkerSettings, Role.FEEDBACK),
    ],
)
def test_a_service_is_given_settings_that_exist_and_the_address_of_its_own_role(
    service: str, kind: type[Process], role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = example_env()
    given = compose(variables)["services"][service]["environment"]
    known = {f"RATCHET_{field.upper()}" for field in kind.model_fields}
    assert {name for name in given if name.startswith("RATCHET_")} - known == set()
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    settings = load(kind)
    password = variables[f"RATCHET_{role.service.upper()}_PASSWORD"]
    assert settings.database_url.get_secret_value() == f"postgresql://{role}:{password}@postgres/ratchet"
    others = {value for name, value in variables.items() if name.endswith("_PASSWORD")} - {password}
    assert not [value for value in map(str, given.values()) if any(other in value for other in others)]


def test_every_file_that_compose_mounts_or_builds_is_there() -> None:
    services = compose(example_env())["services"]
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume.startswith("./") and not volume.startswith(example_env()["RATCHET_MODEL_DIR"])
    ]
    assert mounted
    assert [path for path in mounted if not (DEPLOY / path).exists()] == []
    built = [service["build"]["dockerfile"] for service in services.values() if "build" in service]
    assert [path for path in built if not (ROOT / path).exists()] == []


def test_the_engine_in_compose_stamps_the_policy_and_is_asked_with_the_gateways_key() -> None:
    variables = example_env()
    services = compose(variables)["services"]
    assert f"--served-model-name={variables['RATCHET_POLICY']}" in services["engine"]["command"]
    assert f"--fingerprint-value={variables['RATCHET_POLICY']}" in services["engine"]["command"]
    asked, sent = services["engine"]["environment"], services["gateway"]["environment"]
    assert asked["VLLM_API_KEY"] == sent["RATCHET_ENGINE_API_KEY"]


@pytest.mark.parametrize("path", shipped(".Containerfile"), ids=named)
def test_a_containerfile_runs_as_no_root_and_copies_what_is_there(path: Path, tmp_path: Path) -> None:
    parser = DockerfileParser(str(tmp_path), fileobj=None)
    parser.content = path.read_text()
    steps = [
        (step["instruction"], step["value"]) for step in parser.structure if step["instruction"] != "COMMENT"
    ]
    bases = [value.split()[0] for instruction, value in steps if instruction == "FROM"]
    assert all(re.search(r":[\w.-]*\d", base) for base in bases)
    assert [value for instruction, value in steps if instruction == "USER"][-1] != "root"
    sources = [
        word
        for instruction, value in steps
        if instruction == "COPY" and not value.startswith("--from")
        for word in value.split()[:-1]
    ]
    assert {"pyproject.toml", "constraints", *PACKAGES} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("path", shipped(".sql"), ids=named)
def test_sql_parses(path: Path) -> None:
    statements = pglast.parse_sql(path.read_text())
    assert statements
    for statement in statements:
        if isinstance(statement.stmt, pglast.ast.DoStmt):
            body = next(item.arg.sval for item in statement.stmt.args if item.defname == "as")
            wrapped = f"CREATE FUNCTION checked() RETURNS void LANGUAGE plpgsql AS $checked${body}$checked$"
            assert pglast.parse_plpgsql(wrapped)


def test_the_roles_of_the_sql_are_the_roles_of_the_product() -> None:
    text = (DEPLOY / "postgres" / "roles.sql").read_text()
    array = re.search(r"ARRAY\[([^]]+)\]", text)
    assert array
    assert set(re.findall(r"'(\w+)'", array[1])) == {role.service for role in Role}
    script = (DEPLOY / "postgres" / "10-roles.sh").read_text()
    listed = re.search(r"for service in ([\w ]+);", script)
    assert listed
    assert set(listed[1].split()) == {role.service for role in Role}


@pytest.mark.parametrize("path", shipped(".sh"), ids=named)
def test_shell_scripts_parse_and_may_be_run(path: Path) -> None:
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    assert path.stat().st_mode & 0o111


def test_the_example_decode_config_is_one() -> None:
    decode = DecodeConfig.from_file(DEPLOY / "examples" / "decode.toml")
    assert (decode.temperature, decode.top_p, decode.stop) == (0.7, 0.95, ("\nUser:",))
    assert decode.logit_bias == {0: -100.0}
    text = (DEPLOY / "examples" / "decode.toml").read_text()
    assert [name for name in DecodeConfig.model_fields if name not in text] == []


def test_the_example_traffic_plan_could_be_served() -> None:
    plan = json.loads((DEPLOY / "examples" / "traffic-plan.json").read_text())
    Enforcement(plan["enforcement"])
    check_arms(tuple(PlannedArm(Arm(arm["arm"]), arm["policy"], arm["share"]) for arm in plan["arms"]))


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """Every sample name that a scrape can hold."""
    telemetry = configure("gateway", "test", None)
    feed(telemetry)
    text = telemetry.prometheus_text().decode()
    telemetry.shutdown()
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in text.splitlines() if not line.startswith("#")}


def feed(telemetry: Telemetry) -> None:
    for name in MetricName:
        kind = INSTRUMENTS[name].kind
        if kind is Kind.COUNTER:
            telemetry.counter(name).add(1)
        elif kind is Kind.UP_DOWN:
            telemetry.up_down(name).add(1)
        elif kind is Kind.HISTOGRAM:
            telemetry.histogram(name).record(1)
        else:
            telemetry.observe(name, lambda: [(1, {})])


def label(attribute: str) -> str:
    return attribute.replace(".", "_")


def queries() -> Iterator[tuple[str, str]]:
    """Where a PromQL expression stands, and the expression."""
    for group in yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((OBSERVABILITY / "serving.dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["label"], variable["query"]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:gen_ai|ratchet|error|http)_[a-z0-9_]+\b", text))


@pytest.mark.parametrize(("where", "expression"), [*queries()], ids=lambda value: value[:30])
def test_a_query_speaks_of_metrics_and_labels_that_exist(
    where: str, expression: str, exposed: set[str]
) -> None:
    labels = {label(attribute) for attribute in Attr}
    assert names_in(expression) - exposed - labels == set(), where
    assert names_in(expression) & exposed or "up{" in expression
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


@pytest.mark.parametrize(("where", "expression"), [*queries()], ids=lambda value: value[:30])
def test_a_query_groups_and_filters_by_what_its_metric_carries(
    where: str, expression: str, exposed: set[str]
) -> None:
    carried = {
        label(attribute)
        for name in MetricName
        if names_in(expression) & {sample for sample in exposed if sample.startswith(label(name))}
        for attribute in INSTRUMENTS[name].attributes
    }
    assert names_in(expression) - exposed - carried == set(), where


def test_the_dashboard_shows_every_metric(exposed: set[str]) -> None:
    dashboard = json.loads((OBSERVABILITY / "serving.dashboard.json").read_text())
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in names_in(target["expr"])
    }
    missing = [name for name in MetricName if not any(sample.startswith(label(name)) for sample in shown)]
    assert missing == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_is_explained() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text()
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules if rule["alert"] not in operations] == []
    used = {name for rule in rules for name in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
    assert used - {label(attribute) for attribute in Attr} - {"instance"} == set()


def test_the_scraped_jobs_are_services_of_compose() -> None:
    services = compose(example_env())["services"]
    scraped = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text())["scrape_configs"]
    hosts = {
        target.partition(":")[0]
        for job in scraped
        for item in job["static_configs"]
        for target in item["targets"]
    }
    assert hosts <= set(services)
    collector = yaml.safe_load((OBSERVABILITY / "otel-collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(collector[part])
