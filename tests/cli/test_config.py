"""The command line: Go's ways with flags, the help, and `vcuda config print`."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from deviceplugin.cli import main
from deviceplugin.config.agent import AGENT
from tests.config.resolving import resolve

ENV = {"NODE_NAME": "gpu-7", "NODE_IP": None}


def vcuda(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, args, env={**ENV, **env})


def printed(*args: str, **env: str) -> dict[str, dict[str, object]]:
    result = vcuda("config", "print", "--output", "json", *args, **env)
    assert result.exit_code == 0, result.output
    spec: dict[str, dict[str, object]] = json.loads(result.stdout)["spec"]
    return spec


def test_a_boolean_flag_is_written_as_in_go(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], bool]] = [
        ([], False),
        (["--share-mode"], True),
        (["--share-mode=true"], True),
        (["--share-mode=false"], False),
        (["--share-mode=T"], True),
        (["--share-mode", "--query-port", "1"], True),
    ]
    for args, value in cases:
        with subtests.test(args=args):
            assert printed(*args)["shareMode"]["value"] is value


def test_each_value_is_printed_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("apiVersion: vcuda/v1\nkind: AgentConfig\nspec: {cdi: true}\n")
    spec = printed("--config", str(file), "--query-port=0", VCUDA_AGENT_SAMPLE_PERIOD="2")
    assert spec["queryPort"] == {"value": 0, "from": "flag", "where": "--query-port"}
    assert spec["samplePeriod"] == {"value": "2s", "from": "env", "where": "VCUDA_AGENT_SAMPLE_PERIOD"}
    assert spec["cdi"] == {"value": True, "from": "file", "where": f"{file}: $.spec.cdi"}
    assert spec["queryAddr"] == {"value": "localhost", "from": "default", "where": ""}
    assert spec["hostnameOverride"] == {"value": "gpu-7", "from": "env", "where": "NODE_NAME"}


def test_what_is_printed_is_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    args = ["--node-labels", "a/b=c,d=", "--identity", "apiserver,pods", "--share-mode", "--sample-period", "1m30s"]
    result = vcuda("config", "print", *args)
    file = tmp_path / "printed.yaml"
    file.write_text(result.stdout)
    flags = {"node-labels": "a/b=c,d=", "identity": "apiserver,pods", "share-mode": "true", "sample-period": "90"}
    env = {"NODE_NAME": "gpu-7"}
    assert resolve(AGENT, flags={}, env=env, file=file).settings == resolve(AGENT, flags=flags, env=env).settings
    assert set(yaml.safe_load(result.stdout)["spec"]) == {setting.key for setting in AGENT.settings}


def test_a_wrong_value_ends_with_one_line_and_status_1() -> None:
    result = vcuda("agent", "--query-port", "no")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "vcuda: --query-port: 'no' is not a port; give a whole number from 0 (any free port) to 65535\n"
    )


@pytest.mark.parametrize(
    ("program", "flag"),
    [
        *(("agent", each) for each in ("driver-check-period", "registration", "kubelet-insecure-tls", "nvml-library")),
        *(("scheduler", each) for each in ("end-within", "lease-retry", "kube-api-burst", "certificate-names")),
        *(("scheduler", each) for each in ("webhook-namespaces", "webhook-ignored-namespaces", "prefix-library-path")),
        *(("scheduler", f"hami-{each}-resource") for each in ("count", "memory", "memory-percentage", "cores")),
        ("scheduler", "hami-priority-resource"),
    ],
)
def test_a_flag_that_is_gone_is_an_unknown_one(program: str, flag: str) -> None:
    result = vcuda(program, f"--{flag}", "1")
    assert (result.exit_code, f"vcuda: no such option '--{flag}'" in result.stderr) == (2, True), result.stderr


def test_an_unknown_flag_ends_with_status_2_and_names_a_near_one() -> None:
    result = vcuda("agent", "--query-prot", "1")
    assert result.exit_code == 2
    assert "--query-port" in result.stderr


def test_obsolete_flags_of_gpu_manager_are_accepted_and_reported(subtests: pytest.Subtests) -> None:
    for flag in ["--standalone", "--incluster-mode=true", "--docker-endpoint=unix:///x"]:
        with subtests.test(flag=flag):
            result = vcuda("config", "print", flag)
            assert result.exit_code == 0
            assert result.stderr.startswith(f"vcuda: {flag.partition('=')[0]} has no effect: ")
            assert flag.partition("=")[0] not in vcuda("agent", "--help").stdout


def test_the_help_shows_every_setting_with_its_variable_and_hides_the_hidden() -> None:
    text = " ".join(vcuda("agent", "--help").stdout.split())
    for setting in AGENT.settings:
        assert (f"--{setting.flag} " in text) is not setting.hidden, setting.flag
        variable, *_ = setting.variables(AGENT.env_prefix)
        assert (variable in text.replace("- ", "-")) is not setting.hidden, variable


def test_the_commands_are_listed_without_importing_them() -> None:
    text = " ".join(vcuda("--help").stdout.split())
    for line in ("agent Allocate this node's GPUs", "config Print the", "explain Explain why", "scheduler Choose node"):
        assert line in text


def test_an_unknown_command_is_said_to_be_unknown() -> None:
    result = vcuda("agnet")
    assert result.exit_code == 2
    assert "no such command" in result.stderr
