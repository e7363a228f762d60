"""The scheduler's settings: their own variables and file, and values that do not go together."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin.cli import main
from deviceplugin.config.scheduler import SCHEDULER, Election, HamiResources, NodeChooser
from deviceplugin.errors import ConfigError
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from tests.config.resolving import resolve

HEAD = "apiVersion: vcuda/v1\nkind: SchedulerConfig\n"


def test_flag_variable_and_file_each_set_it_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + "spec:\n  nodePolicy: spread\n  gpuPolicy: link\n  listenPort: 1\n")
    env = {"VCUDA_SCHEDULER_CONFIG": str(file), "VCUDA_SCHEDULER_NODE_POLICY": "binpack"}
    found = resolve(SCHEDULER, flags={"node-policy": "fragmentation"}, env=env)
    assert found.settings.placement.node_policy is NodePolicy.FRAGMENTATION
    assert found.settings.placement.gpu_policy is GpuPolicy.LINK
    layers = {entry.setting.flag: entry.origin for entry in found.entries if entry.where}
    assert layers == {"node-policy": "flag", "gpu-policy": "file", "listen-port": "file"}
    assert resolve(SCHEDULER, flags={}, env=env).settings.placement.node_policy is NodePolicy.BINPACK


def test_the_agents_variables_and_file_mean_nothing_to_the_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("apiVersion: vcuda/v1\nkind: AgentConfig\n")
    assert resolve(SCHEDULER, flags={}, env={"VCUDA_AGENT_CONFIG": str(tmp_path / "none")}).file is None
    with pytest.raises(ConfigError, match=r"\$\.kind is 'AgentConfig'; this version of vcuda reads SchedulerConfig"):
        resolve(SCHEDULER, flags={}, env={}, file=file)


def test_a_replica_is_called_as_its_pod() -> None:
    cluster = resolve(
        SCHEDULER, flags={}, env={"POD_NAME": "vcuda-scheduler-0", "POD_NAMESPACE": "gpu"}
    ).settings.cluster
    assert (cluster.identity, cluster.namespace) == ("vcuda-scheduler-0", "gpu")
    assert resolve(SCHEDULER, flags={}, env={}).settings.cluster.identity


def test_words_become_values() -> None:
    flags = {"leader-election": "kube-scheduler", "node-choice": "scheduler"}
    settings = resolve(SCHEDULER, flags=flags, env={}).settings
    assert settings.leader.election is Election.KUBE_SCHEDULER
    assert settings.placement.node_choice is NodeChooser.SCHEDULER


def test_hamis_resources_are_named_by_a_mapping_and_the_others_keep_their_names(tmp_path: Path) -> None:
    names = {"count": "example.com/vgpu", "memory-percentage": "example.com/part"}
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + yaml.safe_dump({"spec": {"hamiResources": names}}))
    flag = ",".join(f"{word}={name}" for word, name in names.items())
    for found in (
        resolve(SCHEDULER, flags={"hami-resources": flag}, env={}),
        resolve(SCHEDULER, flags={}, env={}, file=file),
    ):
        assert found.settings.webhook.hami.resources == HamiResources(
            count="example.com/vgpu", memory_percentage="example.com/part", cores="nvidia.com/gpucores"
        )


WRONG = (
    ({"tls-cert-file": "/c"}, "--tls-cert-file and --tls-key-file go together"),
    ({"hami-resources": "gpus=a/b"}, "--hami-resources: 'gpus' is unknown; give count, memory, memory-percentage, "),
    ({"hami-resources": "count=gpu"}, "--hami-resources: 'gpu' is not a resource such as nvidia.com/gpu"),
    ({"hami-resources": "count=Nvidia.com/gpu"}, "--hami-resources: 'Nvidia.com/gpu' is not a resource"),
    ({"hami-resources": "count=a/b,count=a/c"}, "--hami-resources: the word 'count' is given twice"),
    (
        {"loopback-port": "8444", "client-ca-file": "/ca"},
        "--loopback-port has no TLS, so no caller can present there",
    ),
    ({"loopback-port": "8443"}, "--loopback-port and --listen-port are both 8443; give two ports"),
    ({"kube-api-qps": "0"}, "--kube-api-qps: '0' is not a whole number from 1 to 999999"),
    ({"namespace": "A"}, "--namespace: 'A' is not the name of an object"),
    ({"node-policy": "best"}, "--node-policy: 'best' is unknown; give binpack, "),
    ({"grafana-url": "javascript:alert(1)"}, "--grafana-url: 'javascript:alert(1)' is not an address such as https://"),
    ({"identity": ""}, "--identity is empty"),
    ({"default-cores": "101"}, "--default-cores: '101' is not a number of cores"),
    ({"share-memory": "half"}, "--share-memory: 'half' is"),
    ({"lease-duration": "1.5s"}, "--lease-duration: '1.5s' is not a whole number of seconds"),
)


def test_a_wrong_value_is_one_sentence_that_names_where_it_stands(subtests: pytest.Subtests) -> None:
    for flags, message in WRONG:
        with subtests.test(message):
            with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
                resolve(SCHEDULER, flags=flags, env={})
            assert "\n" not in caught.value.message


def test_what_is_printed_is_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    flags = {
        "node-policy": "spread",
        "client-names": "a,b",
        "drain": "1.5",
        "grafana-url": "https://grafana.example.org",
        "namespace": "n",
        "identity": "i",
    }
    args = [part for flag, text in flags.items() for part in (f"--{flag}", text)]
    result = CliRunner().invoke(main, ["config", "print-scheduler", *args])
    assert result.exit_code == 0, result.output
    file = tmp_path / "printed.yaml"
    file.write_text(result.stdout)
    assert resolve(SCHEDULER, flags={}, env={}, file=file).settings == resolve(SCHEDULER, flags=flags, env={}).settings
    assert set(yaml.safe_load(result.stdout)["spec"]) == {setting.key for setting in SCHEDULER.settings}
