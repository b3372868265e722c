"""How an engine is started: its command, its environment, its cores."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ratchet.errors import ConfigError, PolicyRefused
from ratchet.settings import GatewaySettings, WorkerSettings
from ratchet.supervisor import cores, environment, folder, vllm
from ratchet.supervisor.settings import SupervisorSettings, load_settings
from ratchet.supervisor.vllm import Boot
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def boot(tiny: Path) -> Boot:
    return Boot(tiny, "tiny@0123456789ab", 2048, 4321, "rt-0123456789ab-ff", (0, 2), "engine-key")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "runs_on_cpu", lambda: True)
    monkeypatch.setattr(vllm, "preloads", lambda: (Path("/lib/a.so"), Path("/lib/b.so")))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "runs_on_cpu", lambda: False)


def value_of(options: list[str], name: str) -> str:
    assert options.count(name) == 1
    return options[options.index(name) + 1]


@pytest.mark.usefixtures("on_cpu")
def test_vllm_is_given_the_policy_and_its_stamp(boot: Boot) -> None:
    options = vllm.options(boot, SupervisorSettings())
    expected = {
        "--model": str(boot.folder),
        "--served-model-name": "tiny@0123456789ab",
        "--host": "127.0.0.1",
        "--port": "4321",
        "--fingerprint-mode": "custom",
        "--fingerprint-value": "rt-0123456789ab-ff",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--dtype": "float32",
        "--max-model-len": "2048",
    }
    assert {name: value_of(options, name) for name in expected} == expected
    assert "--enforce-eager" in options
    assert "engine-key" not in options


@pytest.mark.usefixtures("on_gpu")
def test_on_a_gpu_vllm_chooses_the_precision_and_compiles(boot: Boot) -> None:
    options = vllm.options(boot, SupervisorSettings())
    assert value_of(options, "--dtype") == "auto"
    assert "--enforce-eager" not in options
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm.variables(boot, SupervisorSettings())


def test_an_operators_settings_go_into_the_command(boot: Boot) -> None:
    settings = SupervisorSettings(
        engine_dtype="bfloat16", engine_max_model_len=512, engine_options="--max-num-seqs 4 --seed '7 8'"
    )
    options = vllm.options(boot, settings)
    assert value_of(options, "--dtype") == "bfloat16"
    assert value_of(options, "--max-model-len") == "512"
    assert options[-4:] == ["--max-num-seqs", "4", "--seed", "7 8"]


def test_the_command_can_be_wrapped_and_replaced(boot: Boot) -> None:
    plain = vllm.command(boot, SupervisorSettings())
    assert plain[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    wrapped = vllm.command(boot, SupervisorSettings(engine_command="numactl -N 0 {command} --seed 1"))
    assert wrapped == ("numactl", "-N", "0", *plain, "--seed", "1")
    replaced = vllm.command(
        boot, SupervisorSettings(engine_command="run '{model}' --is={served} {host}:{port} {{{fingerprint}}}")
    )
    assert replaced == (
        "run", str(boot.folder), "--is=tiny@0123456789ab", "127.0.0.1:4321", "{rt-0123456789ab-ff}",
    )  # fmt: skip


@pytest.mark.parametrize("template", ["{nothing}", "x{command}", "{0}", "run '", "{"])
def test_a_command_that_cannot_be_read_is_refused_with_its_name(boot: Boot, template: str) -> None:
    with pytest.raises(ConfigError, match="RATCHET_ENGINE_COMMAND"):
        vllm.command(boot, SupervisorSettings(engine_command=template))


@pytest.mark.usefixtures("on_cpu")
def test_an_engine_gets_its_key_its_cores_and_no_secret_of_others(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RATCHET_DATABASE_URL", "RATCHET_HOME", "VLLM_API_KEY", "HF_TOKEN", "VLLM_OTHER_SECRET"):
        monkeypatch.setenv(name, "of the shell")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    given = vllm.variables(boot, SupervisorSettings(engine_kv_gib=3))
    assert given["VLLM_API_KEY"] == "engine-key"
    assert given["VLLM_CPU_OMP_THREADS_BIND"] == "0,2"
    assert given["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert given["VLLM_MAX_STOP_STRINGS"] == "20"
    assert given["LD_PRELOAD"] == "/lib/a.so:/lib/b.so"
    assert given["HF_HUB_OFFLINE"] == given["VLLM_NO_USAGE_STATS"] == given["DO_NOT_TRACK"] == "1"
    assert given["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "of the shell" not in given.values()


def test_services_get_their_own_settings_and_no_secret_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RATCHET_LOG_LEVEL": "DEBUG",
        "RATCHET_SPOOL_FULL": "fail-open",
        "RATCHET_ENGINE_API_KEY": "of the shell",
        "RATCHET_DATABASE_URL": "of the shell",
        "RATCHET_OPERATOR_DATABASE_URL": "of the shell",
        "RATCHET_FEEDBACK_DATABASE_URL": "of the shell",
        "RATCHET_FEEDBACK_PAGE_SIZE": "20",
        "AWS_SECRET_ACCESS_KEY": "of the shell",
    }.items():
        monkeypatch.setenv(name, value)
    gateway = environment.of_service(
        "gateway", GatewaySettings, {"RATCHET_INSTANCE": "gateway"}, {"RATCHET_DATABASE_URL": "its own"}
    )
    assert gateway["RATCHET_DATABASE_URL"] == "its own"
    assert gateway["RATCHET_LOG_LEVEL"] == "DEBUG"
    assert gateway["RATCHET_SPOOL_FULL"] == "fail-open"
    assert "of the shell" not in gateway.values()
    feedback = environment.of_service("feedback", WorkerSettings, {}, {})
    assert feedback["RATCHET_FEEDBACK_PAGE_SIZE"] == "20"
    assert "RATCHET_SPOOL_FULL" not in feedback
    assert "of the shell" not in feedback.values()


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3_json"),
        ("{{ tools }} in a way nobody knows", None),
        ("<tool_call> but no word of what may be called", None),
        ("{{ messages }}", None),
    ],
)
def test_the_tool_parser_is_the_one_of_the_chat_template(
    tmp_path: Path, template: str, parser: str | None
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert vllm.tool_parser(tmp_path) == parser
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert vllm.tool_parser(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_text(template)
    assert vllm.tool_parser(tmp_path) == parser


@pytest.mark.parametrize(
    ("machine", "engines", "wish", "used", "expected"),
    [
        ([0], 1, None, [], [0]),
        ([0, 1], 1, None, [], [0, 1]),
        ([0, 1], 2, None, [], [0]),
        ([0, 1], 2, None, [0], [1]),
        ([0, 1], 2, None, [0, 1], [0]),
        ([0, 1], 3, None, [0, 1], [0]),
        ([0, 1], 1, 1, [], [0]),
        ([0, 1, 2, 3], 1, None, [], [1, 2, 3]),
        (list(range(9)), 2, None, [1, 2, 3, 4], [5, 6, 7, 8]),
        ([4, 6], 1, None, [], [4, 6]),
    ],
)
def test_engines_share_the_cores(
    machine: list[int], engines: int, wish: int | None, used: list[int], expected: list[int]
) -> None:
    assert cores.choose(machine, engines, wish, used) == expected


@given(st.integers(1, 64), st.integers(1, 8))
def test_engines_that_start_together_overlap_only_where_cores_are_too_few(count: int, engines: int) -> None:
    used: list[int] = []
    for _ in range(engines):
        chosen = cores.choose(list(range(count)), engines, None, used)
        assert chosen == sorted(set(chosen))
        assert chosen
        used += chosen
    free_for_engines = count - 1 if count >= 4 else count
    assert max(Counter(used).values()) <= -(-engines // free_for_engines)


def test_a_whole_folder_passes_and_a_damaged_one_names_its_file(tiny: Path, tmp_path: Path) -> None:
    folder.check(tiny)
    config = tmp_path / "config.json"
    with pytest.raises(PolicyRefused, match=r"config\.json cannot be read"):
        folder.check(tmp_path)
    config.write_text("{")
    with pytest.raises(PolicyRefused, match=r"config\.json cannot be read"):
        folder.check(tmp_path)
    config.write_text("{}")
    with pytest.raises(PolicyRefused, match=r"holds no \*\.safetensors"):
        folder.check(tmp_path)
    whole = (tiny / "model.safetensors").read_bytes()
    for damaged in (b"", whole[:4], whole[:1000], whole[:-1], b"PK" + whole[2:]):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(PolicyRefused, match=r"model\.safetensors is damaged"):
            folder.check(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    folder.check(tmp_path)


def test_a_setting_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_KV_GIB", "lots")
    with pytest.raises(ConfigError, match="RATCHET_ENGINE_KV_GIB"):
        load_settings()
