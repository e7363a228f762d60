"""Precedence, provenance, and what is derived."""

from pathlib import Path

import pytest

from deviceplugin.config.agent import AGENT, AgentSettings, IdentitySourceName
from deviceplugin.config.command import Effective
from deviceplugin.errors import ConfigError
from deviceplugin.model.units import ResourceNames
from tests.config.resolving import resolve

HEAD = "apiVersion: vcuda/v1\nkind: AgentConfig\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(HEAD + "spec:\n  queryPort: 1003\n  shareMode: true\n  samplePeriod: 2s\n")
    return path


def layer_of(effective: Effective[AgentSettings], flag: str) -> tuple[str, str]:
    return next((entry.origin, entry.where) for entry in effective.entries if entry.setting.flag == flag)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(file: Path) -> None:
    env = {"VCUDA_AGENT_QUERY_PORT": "1002"}
    everything = resolve(AGENT, flags={"query-port": "1001"}, env=env, file=file)
    assert everything.settings.query.port == 1001
    assert layer_of(everything, "query-port") == ("flag", "--query-port")

    without_flag = resolve(AGENT, flags={}, env=env, file=file)
    assert without_flag.settings.query.port == 1002
    assert layer_of(without_flag, "query-port") == ("env", "VCUDA_AGENT_QUERY_PORT")

    only_file = resolve(AGENT, flags={}, env={}, file=file)
    assert only_file.settings.query.port == 1003
    assert layer_of(only_file, "query-port") == ("file", f"{file}: $.spec.queryPort")

    nothing = resolve(AGENT, flags={}, env={})
    assert nothing.settings.query.port == 5678
    assert layer_of(nothing, "query-port") == ("default", "")


def test_the_file_may_be_named_by_the_environment(file: Path) -> None:
    effective = resolve(AGENT, flags={}, env={"VCUDA_AGENT_CONFIG": str(file)})
    assert (effective.settings.allocation.share_mode, effective.file) == (True, file)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert resolve(AGENT, flags={}, env={"VCUDA_AGENT_QUERY_PORT": ""}).settings.query.port == 5678


def test_an_empty_flag_sets_nothing_where_nothing_is_a_value() -> None:
    assert resolve(AGENT, flags={"display-socket": ""}, env={}).settings.query.display_socket is None


def test_what_was_set_is_logged_with_its_origin(file: Path) -> None:
    effective = resolve(AGENT, flags={"numa": "true"}, env={"NODE_NAME": "gpu-7"}, file=file)
    assert effective.changed() == {
        "hostnameOverride": "gpu-7 (NODE_NAME)",
        "numa": "true (--numa)",
        "queryPort": f"1003 ({file}: $.spec.queryPort)",
        "samplePeriod": f"2s ({file}: $.spec.samplePeriod)",
        "shareMode": f"true ({file}: $.spec.shareMode)",
    }


def test_gpu_managers_flags_have_their_defaults() -> None:
    settings = resolve(AGENT, flags={}, env={"NODE_NAME": "n"}).settings
    assert settings.driver.extra_config.devices == ()
    assert settings.driver.volume_config.volumes == ()
    assert (settings.query.port, settings.query.address) == (5678, "localhost")
    assert settings.query.display_socket == Path("/var/run/gpu-manager.sock")
    assert settings.node.kubeconfig is None
    assert settings.driver.sample_period == 1
    assert settings.node.labels == {}
    assert settings.allocation.virtual_manager_path == Path("/etc/gpu-manager/vm")
    assert settings.allocation.checkpoint_path == Path("/etc/gpu-manager/checkpoint")
    assert settings.driver.mirror_path == Path("/etc/gpu-manager/vdriver")
    assert settings.kubelet.device_plugin_path == Path("/var/lib/kubelet/device-plugins")
    assert settings.allocation.share_mode is False
    assert settings.allocation.check_period == 30


GPU_MANAGER = (
    *("extra-config", "volume-config", "query-port", "query-addr", "kubeconfig", "sample-period"),
    *("node-labels", "hostname-override", "virtual-manager-path", "device-plugin-path", "checkpoint-path"),
    *("share-mode", "allocation-check-period", "container-runtime-endpoint"),
)
WITHOUT_EFFECT = ("driver", "cgroup-driver", "runtime-request-timeout", "wait-timeout", "standalone", "incluster-mode")


def test_every_flag_of_gpu_manager_is_there() -> None:
    assert set(GPU_MANAGER) <= {setting.flag for setting in AGENT.settings}
    given = resolve(AGENT, flags=dict.fromkeys(WITHOUT_EFFECT, "x"), env={}).retired
    assert {each.partition(" has no effect: ")[0] for each in given} == {f"--{flag}" for flag in WITHOUT_EFFECT}


def test_kubelets_directories_are_two_settings_and_its_address_is_the_nodes() -> None:
    """The one of device plugins is a constant in kubelet, whatever its --root-dir."""
    plugins = {"device-plugin-path": "/data/kubelet/device-plugins/"}
    kubelet = resolve(AGENT, flags=plugins, env={"NODE_IP": "10.0.0.7"}).settings.kubelet
    assert kubelet.root == Path("/var/lib/kubelet")
    moved = resolve(AGENT, flags={"kubelet-root": "/k"}, env={}).settings.kubelet
    assert moved.device_plugin_path == Path("/var/lib/kubelet/device-plugins")
    assert kubelet.pods_endpoint == "https://10.0.0.7:10250/pods"
    assert resolve(AGENT, flags={}, env={}).settings.kubelet.pods_endpoint == "https://127.0.0.1:10250/pods"
    assert (
        resolve(AGENT, flags={}, env={"NODE_IP": "fd00::7"}).settings.kubelet.pods_endpoint
        == "https://[fd00::7]:10250/pods"
    )
    assert resolve(AGENT, flags={"kubelet-root": "/k"}, env={}).settings.kubelet.root == Path("/k")


def test_the_node_is_named_by_its_flag_else_by_the_pod_spec_else_the_machine() -> None:
    assert resolve(AGENT, flags={"hostname-override": "A"}, env={"NODE_NAME": "b"}).settings.node.name == "a"
    assert resolve(AGENT, flags={}, env={"NODE_NAME": "b"}).settings.node.name == "b"
    assert resolve(AGENT, flags={}, env={}).settings.node.name


def test_the_domain_makes_the_names_of_the_resources() -> None:
    assert resolve(AGENT, flags={"resource-domain": "example.org"}, env={}).settings.names == ResourceNames(
        "example.org"
    )


def test_identity_keeps_the_order_given() -> None:
    allocation = resolve(AGENT, flags={"identity": "apiserver, pods"}, env={}).settings.allocation
    assert allocation.identity == (IdentitySourceName.APISERVER, IdentitySourceName.PODS)
    assert resolve(AGENT, flags={}, env={}).settings.allocation.identity == tuple(IdentitySourceName)


WRONG: tuple[tuple[dict[str, str], dict[str, str], str], ...] = (
    (
        {"query-port": "x"},
        {},
        "--query-port: 'x' is not a port; give a whole number from 0 (any free port) to 65535",
    ),
    ({}, {"VCUDA_AGENT_SHARE_MODE": "on"}, "VCUDA_AGENT_SHARE_MODE: 'on' is neither true nor false"),
    ({"log-level": "x"}, {}, "--log-level: 'x' is unknown; give debug, info, warning or error"),
    ({}, {"NODE_NAME": "Not A Node"}, "NODE_NAME: 'Not A Node' is not the name of a node; give the name that "),
    ({"node-labels": "a b=c"}, {}, "--node-labels: 'a b=c' is not a node label; give KEY=VALUE,KEY=VALUE"),
    ({"node-labels": "a=1,a=2"}, {}, "--node-labels: the label 'a' is given twice"),
    ({"sample-period": "0"}, {}, "--sample-period: '0' must be longer than 0s"),
    (
        {"health-recovery": "1 minute"},
        {},
        "--health-recovery: '1 minute' is not a duration; give seconds (30)",
    ),
    ({"identity": "pods,pods"}, {}, "--identity: 'pods,pods' names a word twice"),
    ({"container-runtime-endpoint": "tcp://x"}, {}, "--container-runtime-endpoint: 'tcp://x' is not a unix socket"),
    ({"kubelet-pods-endpoint": "10.0.0.7"}, {}, "--kubelet-pods-endpoint: '10.0.0.7' is not an address such as"),
    ({"resource-domain": "a_b"}, {}, "--resource-domain: 'a_b' is not a DNS name such as tencent.com"),
    ({"query-addr": "a b"}, {}, "--query-addr: 'a b' is neither an address nor a host name"),
    ({"device-plugin-path": ""}, {}, "--device-plugin-path: '' is not a path"),
)


def test_a_wrong_value_is_one_sentence_that_names_where_it_stands(subtests: pytest.Subtests) -> None:
    for flags, env, message in WRONG:
        with subtests.test(message):
            with pytest.raises(ConfigError) as caught:
                resolve(AGENT, flags=flags, env=env)
            assert caught.value.message.startswith(message)
            assert "\n" not in caught.value.message


@pytest.mark.parametrize("layer", ["flag", "variable", "file"])
def test_a_retired_setting_is_accepted_and_reported_wherever_it_stands(tmp_path: Path, layer: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("apiVersion: vcuda/v1\nkind: AgentConfig\nspec: {dockerEndpoint: x}\n")
    found = resolve(
        AGENT,
        flags={"docker-endpoint": "x"} if layer == "flag" else {},
        env={"VCUDA_AGENT_DOCKER_ENDPOINT": "x"} if layer == "variable" else {},
        file=path if layer == "file" else None,
    )
    where = {
        "flag": "--docker-endpoint",
        "variable": "VCUDA_AGENT_DOCKER_ENDPOINT",
        "file": f"{path}: $.spec.dockerEndpoint",
    }[layer]
    (sentence,) = found.retired
    assert sentence.startswith(f"{where} has no effect: the agent talks to the container runtime through CRI")
    assert "dockerEndpoint" not in found.changed()
