"""The manifests: flags that exist, rights that are needed and no others, mounts that fit together."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin import __version__
from deviceplugin.cli import main
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.model.request import parse_request
from deviceplugin.model.units import ResourceNames
from tests.config.resolving import resolve
from tests.daemonset.manifests import ROOT, Object, base, confinement, documents, with_component

PATCHING = ("cdi", "nodes-proxy", "nvidia-runtime")
COMPONENTS = (*PATCHING, "network-policy", "unconfined")  # the others add or remove objects
COMBINATIONS = [chosen for size in range(len(PATCHING) + 1) for chosen in itertools.combinations(PATCHING, size)]

# What docs/ and the client say that the agent does, by resource: the only reasons for a right.
NEEDED = {
    "pods": {
        "get": "one pod by name, when PodResources names it",
        "list": "the reflector",
        "watch": "the reflector",
        "patch": "annotations of what a pod holds",
        "delete": "pods of a controller that kubelet refused for our devices",
    },
    "nodes": {
        "get": "labels and annotations as they are",
        "list": "the reflector of its own node, for the cordon of GPUs",
        "watch": "the reflector of its own node",
        "patch": "labels and the inventory annotation",
    },
    "nodes/pods": {"get": "kubelet's list of pods"},
    "events": {"create": "what happened to a pod or a GPU", "patch": "counting one that happens again"},
}


def built(*components: str) -> dict[str, Object]:
    objects = base()
    for name in components:
        objects = with_component(name, objects)
    return objects


def pod_of(objects: dict[str, Object]) -> Object:
    spec: Object = objects["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def settings_for(container: Object) -> AgentSettings:
    """The agent's settings: arguments and environment, parsed by the agent's own code."""
    command, *flags = container["args"]
    assert command == "agent"
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    assert set(given) <= {setting.flag for setting in AGENT.settings}
    fields = {"spec.nodeName": "gpu-7", "status.hostIP": "10.0.0.7"}
    env = {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
    return resolve(AGENT, flags=given, env=env).settings


def test_the_arguments_are_flags_with_good_values(subtests: pytest.Subtests) -> None:
    for components in COMBINATIONS:
        with subtests.test("+".join(components)):
            settings = settings_for(pod_of(built(*components))["containers"][0])
            assert settings.node.name == "gpu-7"
            assert settings.kubelet.pods_endpoint == "https://10.0.0.7:10250/pods"
            assert settings.allocation.cdi is ("cdi" in components)


def test_the_command_line_takes_the_arguments_as_they_stand() -> None:
    _, *flags = pod_of(base())["containers"][0]["args"]
    result = CliRunner().invoke(main, ["config", "print", *flags])
    assert result.exit_code == 0, result.output


def paths_of(pod: Object) -> dict[str, str]:
    """On the node, of each volume; /tmp is the pod's own, in memory, for what Python puts aside."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    (own,) = [volume for volume in pod["volumes"] if "hostPath" not in volume]
    assert own == {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    assert {"name": "tmp", "mountPath": "/tmp"} in pod["containers"][0]["volumeMounts"]
    return {**paths, "tmp": "/tmp"}


def test_every_path_that_the_agent_uses_is_mounted_and_every_mount_has_its_volume(subtests: pytest.Subtests) -> None:
    for components in COMBINATIONS:
        with subtests.test("+".join(components)):
            pod = pod_of(built(*components))
            container = pod["containers"][0]
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            volumes = paths_of(pod)
            assert sorted(mount["name"] for mount in mounts.values()) == sorted(volumes)

            settings = settings_for(container)
            allocation, kubelet = settings.allocation, settings.kubelet
            assert settings.query.display_socket is not None
            written = [
                allocation.checkpoint_path,
                allocation.virtual_manager_path,
                settings.driver.mirror_path,
                kubelet.device_plugin_path,
                kubelet.root / "plugins_registry",
                settings.query.display_socket.parent,
                *([allocation.cdi_dir] if allocation.cdi else []),
            ]
            for path in written:
                mount = next(mounts[str(above)] for above in (path, *path.parents) if str(above) in mounts)
                assert not mount.get("readOnly"), path
                # Kubelet and the runtime read these paths on the node, so both sides must name them alike.
                assert volumes[mount["name"]] == mount["mountPath"]
            assert mounts[str(kubelet.root / "pod-resources")]["readOnly"] is True


def test_the_agent_mounts_a_tmpfs_where_it_may_and_the_node_sees_it(subtests: pytest.Subtests) -> None:
    """The API server refuses Bidirectional without privilege; without it the runtime would not see the files."""
    for components in COMBINATIONS:
        with subtests.test("+".join(components)):
            container = pod_of(built(*components))["containers"][0]
            privileged = container["securityContext"]["privileged"]
            allocation = settings_for(container).allocation
            both = {
                mount["mountPath"]
                for mount in container["volumeMounts"]
                if mount.get("mountPropagation") == "Bidirectional"
            }
            assert allocation.virtual_manager_tmpfs is privileged
            assert both == ({str(allocation.virtual_manager_path.parent)} if privileged else set())


def test_the_drivers_files_are_seen_where_the_agent_looks_for_them(subtests: pytest.Subtests) -> None:
    """Below the driver root the node's /usr and /etc; with NVIDIA's runtime, the files that it brings into the pod."""
    for components in COMBINATIONS:
        with subtests.test("+".join(components)):
            pod = pod_of(built(*components))
            container = pod["containers"][0]
            root = settings_for(container).driver.root
            volumes = paths_of(pod)
            seen = {
                mount["mountPath"]: mount
                for mount in container["volumeMounts"]
                if volumes[mount["name"]] in ("/usr", "/etc")
            }
            if "nvidia-runtime" in components:
                assert seen == {}
                assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"} in container["env"]
            else:
                assert seen.keys() == {str(root / "usr"), str(root / "etc")}
                assert all(mount["readOnly"] is True for mount in seen.values())


def rights(role: Object) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert rule["apiGroups"] == [""]
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_the_agent_may_do_what_it_needs_and_nothing_else() -> None:
    assert rights(base()["ClusterRole"]) == {resource: set(verbs) for resource, verbs in NEEDED.items()}


def test_nodes_proxy_comes_only_with_its_component() -> None:
    more = rights(built("nodes-proxy")["ClusterRole"])
    assert more.pop("nodes/proxy") == {"get"}
    assert more == rights(base()["ClusterRole"])


def test_the_component_unconfined_removes_the_policies_and_nothing_else() -> None:
    (component,) = documents("components/unconfined/kustomization.yaml")
    patches = [yaml.safe_load(each["patch"]) for each in component["patches"]]
    removed = [(each["kind"], each["metadata"]["name"]) for each in patches if each["$patch"] == "delete"]
    assert sorted(removed) == sorted((each["kind"], each["metadata"]["name"]) for each in confinement())
    assert component.keys() == {"apiVersion", "kind", "patches"}


def test_the_agent_is_held_to_its_node_in_every_namespace() -> None:
    """kustomize's `namespace` moves the account and changes no expression, so the policies matched nobody."""
    policies = [each for each in confinement() if each["kind"] == "ValidatingAdmissionPolicy"]
    assert len(policies) == 3
    for policy in policies:
        (condition,) = policy["spec"]["matchConditions"]
        assert 'endsWith(":vcuda-agent")' in condition["expression"]
        assert base()["ServiceAccount"]["metadata"]["namespace"] not in condition["expression"]


def test_the_binding_gives_the_role_to_the_agents_account_alone() -> None:
    objects = base()
    binding, account = objects["ClusterRoleBinding"], objects["ServiceAccount"]["metadata"]
    assert binding["roleRef"]["name"] == objects["ClusterRole"]["metadata"]["name"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert binding["subjects"] == [subject]
    assert pod_of(objects)["serviceAccountName"] == account["name"]


def test_no_manifest_grants_everything() -> None:
    texts = {path: re.sub("#.*", "", path.read_text()) for path in ROOT.rglob("*.yaml")}
    assert len(texts) > 40
    forbidden = ('"*"', "'*'", "cluster-admin", "system:masters")
    assert [(str(path), word) for path, text in texts.items() for word in forbidden if word in text] == []


def test_two_agents_never_run_on_one_node() -> None:
    update = base()["DaemonSet"]["spec"]["updateStrategy"]
    assert (update["type"], update["rollingUpdate"]["maxSurge"]) == ("RollingUpdate", 0)


def test_the_agent_is_not_pushed_off_its_node_and_runs_where_gpus_are_tainted() -> None:
    pod = pod_of(base())
    assert pod["priorityClassName"] == "system-node-critical"
    assert {toleration["key"] for toleration in pod["tolerations"]} >= {"nvidia.com/gpu", "tencent.com/vcuda-core"}


def test_probes_ask_the_pages_that_the_agent_serves_where_it_serves_them() -> None:
    container = pod_of(base())["containers"][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    settings = settings_for(container)
    assert [port["containerPort"] for port in container["ports"]] == [settings.query.port]
    assert settings.query.address == "0.0.0.0"
    annotations = base()["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.query.port)


def test_the_pod_shares_the_nodes_processes_and_no_more_and_cannot_write_its_own_root() -> None:
    for components in COMBINATIONS:
        pod = pod_of(built(*components))
        assert pod["hostPID"] is True
        assert not {"hostNetwork", "hostIPC"} & set(pod)
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["enableServiceLinks"] is False


def test_with_the_nvidia_runtime_the_agent_has_no_privilege() -> None:
    pod = pod_of(built("nvidia-runtime"))
    context = pod["containers"][0]["securityContext"]
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["runtimeClassName"] == "nvidia"
    assert settings_for(pod["containers"][0]).driver.root == Path("/")
    assert settings_for(pod["containers"][0]).runtime.endpoint is None
    assert not [mount for mount in pod["containers"][0]["volumeMounts"] if "containerd" in mount["mountPath"]]


def test_containers_are_found_where_their_runtime_and_the_kernel_show_them() -> None:
    for components in COMBINATIONS:
        container = pod_of(built(*components))["containers"][0]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert mounts["/sys/fs/cgroup"]["readOnly"] is True
        endpoint = settings_for(container).runtime.endpoint
        assert endpoint is None or str(endpoint.parent) in mounts


def test_the_image_is_named_by_the_version() -> None:
    assert pod_of(base())["containers"][0]["image"] == f"vcuda:{__version__}"


def test_the_sample_pod_asks_for_something_that_can_be_given() -> None:
    names = ResourceNames()
    (pod,) = documents("sample-pod.yaml")
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    request = parse_request(limits[names.core], limits["tencent.com/vcuda-memory-mib"] // 256)
    assert (request.gpus, request.kind.value) == (1, "share")


def test_the_readme_names_every_component() -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(COMPONENTS) == sorted(path.name for path in (ROOT / "components").iterdir())
