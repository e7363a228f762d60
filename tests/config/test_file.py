"""The configuration file: known keys of the right type, or one error that names the place."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.config.agent import AGENT
from deviceplugin.errors import ConfigError
from tests.config.resolving import resolve
from tests.examples import examples

HEAD = "apiVersion: vcuda/v1\nkind: AgentConfig\n"


WRONG = (
    (HEAD + "spec: {qeryPort: 1}", "$.spec.qeryPort is not a known key; did you mean queryPort?"),
    (HEAD + "spec: {zzz: 1}", "$.spec.zzz is not a known key"),
    (HEAD + 'spec: {"a\\nb": 1}', r"$.spec.'a\nb' is not a known key"),
    (HEAD + "extra: 1", "$.extra is not a known key"),
    (HEAD + "spec: [1]", "$.spec is not a mapping of settings"),
    (HEAD + "spec: {queryPort: '1'}", "$.spec.queryPort: expected a port number, found text ('1')"),
    (HEAD + "spec: {queryPort: true}", "$.spec.queryPort: expected a port number, found true or false ('True')"),
    (HEAD + "spec: {queryPort: 70000}", "$.spec.queryPort: '70000' is not a port"),
    (HEAD + "spec: {queryPort: }", "$.spec.queryPort: expected a port number, found nothing"),
    (HEAD + "spec: {shareMode: 'true'}", "$.spec.shareMode: expected true or false, found text ('true')"),
    (HEAD + "spec: {logLevel: [info]}", "$.spec.logLevel: expected debug, info, warning or error, found a list"),
    (HEAD + "spec: {kubeconfig: 2001-01-01}", "$.spec.kubeconfig: expected a path, found a date ('2001-01-01')"),
    (HEAD + "spec: {numa: true, numa: false}", "not YAML: 'numa' is given twice, again in line 3"),
    ("kind: AgentConfig", "$.apiVersion is missing; this version of vcuda reads vcuda/v1"),
    ("apiVersion: vcuda/v2\nkind: AgentConfig", "$.apiVersion is 'vcuda/v2'; this version of vcuda reads vcuda/v1"),
    ("apiVersion: vcuda/v1\nkind: Pod", "$.kind is 'Pod'; this version of vcuda reads AgentConfig"),
    ("[]", "$ is not a mapping; start with apiVersion: vcuda/v1 and kind: AgentConfig"),
    ("", "$ is not a mapping; start with"),
    ("a: [", "not YAML: while parsing a flow node"),
    ("[" * 5000, "not YAML: "),
    ("a: 2001-99-99", "not YAML: month must be in 1..12"),
    ("a: \x00", "not YAML: "),
    ("? [a]\n: 1", "not YAML: "),
)


def test_a_wrong_file_is_one_sentence_with_file_and_path(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "agent.yaml"
    for text, message in WRONG:
        with subtests.test(message):
            path.write_text(text)
            with pytest.raises(ConfigError) as caught:
                resolve(AGENT, flags={}, env={}, file=path)
            assert caught.value.message.startswith(f"{path}: {message}")
            assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the configuration file cannot be read: No such file or directory"):
        resolve(AGENT, flags={}, env={}, file=tmp_path / "none.yaml")


def test_a_file_whose_name_cannot_be_printed_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"--config: '/a\\nb' holds characters that cannot be printed"):
        resolve(AGENT, flags={}, env={}, file=Path("/a\nb"))
    with pytest.raises(ConfigError, match=r"VCUDA_AGENT_CONFIG: '/a\\nb' holds characters that cannot be printed"):
        resolve(AGENT, flags={}, env={"VCUDA_AGENT_CONFIG": "/a\nb"})


def test_a_file_without_spec_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(HEAD)
    env = {"NODE_NAME": "n"}
    assert resolve(AGENT, flags={}, env=env, file=path).settings == resolve(AGENT, flags={}, env=env).settings


def test_lists_labels_and_numbers_may_be_written_the_way_of_yaml(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        HEAD + "spec: {identity: [pods, apiserver], nodeLabels: {a/b: c, d: ''}, samplePeriod: 3, healthRecovery: 1.5}"
    )
    found = resolve(AGENT, flags={}, env={}, file=path).settings
    assert [source.value for source in found.allocation.identity] == ["pods", "apiserver"]
    assert found.node.labels == {"a/b": "c", "d": ""}
    assert (found.driver.sample_period, found.driver.health_recovery) == (3, 1.5)


@examples(150, suppress=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda tail: (HEAD + "spec:\n  " + tail).encode())))
def test_any_bytes_are_read_or_refused_with_our_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(raw)
    try:
        found = resolve(AGENT, flags={}, env={"NODE_NAME": "n"}, file=path)
    except ConfigError as error:
        assert error.message.startswith(f"{path}: ")  # noqa: PT017
    else:
        assert found.file == path
