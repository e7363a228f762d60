"""Each platform of platforms.yaml: what the agent gets there, in objects that old and new API servers know."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Chart, Object, Rendered, documents
from tests.daemonset.value_sets import PLATFORMS, VALUE_SETS
from tests.definitions.kubernetes import faults

TABLE = yaml.safe_load((manifests.CHART / "platforms.yaml").read_text())
OLDEST, NEWEST = "1.30", "1.37"
OF_OTHERS = ("cert-manager.io/", "monitoring.coreos.com/", "security.openshift.io/")
"""API groups that Kubernetes itself has no schemas of; test_foreign_kinds.py checks their objects."""


def on(chart: Chart, platform: str, **agent: object) -> Rendered:
    return chart.render({"platform": platform, "agent": agent})


def paths(pod: Object) -> dict[str, str]:
    return {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}


def mounts(pod: Object) -> dict[str, Object]:
    return {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}


def flags(pod: Object) -> dict[str, str]:
    return dict(each.removeprefix("--").split("=", 1) for each in pod["containers"][0]["args"][1:])


def test_the_table_has_the_platforms_that_the_schema_takes() -> None:
    schema = yaml.safe_load((manifests.CHART / "values.schema.json").read_text())
    assert schema["properties"]["platform"]["enum"] == ["", *(name for name in TABLE if name != "default")]
    assert set(PLATFORMS) | {"default"} == TABLE.keys()
    assert all(row.keys() <= TABLE["default"].keys() for row in TABLE.values())


LIKE_KUBEADM = ("eks", "aks")


def of_kubernetes(rendered: Rendered) -> list[Object]:
    return [each for each in rendered if not each["apiVersion"].startswith(OF_OTHERS)]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_strictly_what_the_api_server_takes(
    chart: Chart, version: str, subtests: pytest.Subtests
) -> None:
    agent = {"confined": version != OLDEST}
    sets = {name: {"platform": name, "agent": agent} for name in PLATFORMS if name not in LIKE_KUBEADM}
    for platform, rendered in chart.render_all(sets, f"--kube-version={version}.0").items():
        with subtests.test(platform):
            known = of_kubernetes(rendered)
            assert len(known) >= 18
            assert [(each["kind"], wrong) for each in known if (wrong := faults(each, version))] == []


def test_so_is_every_other_set_of_values(chart: Chart) -> None:
    sets = chart.render_all(VALUE_SETS)
    known = [(name, each) for name, rendered in sets.items() for each in of_kubernetes(rendered)]
    assert [(name, each["kind"], wrong) for name, each in known if (wrong := faults(each, "1.36"))] == []


def test_a_field_that_does_not_exist_is_found(defaults: Rendered) -> None:
    daemonset = defaults.get("DaemonSet", "vcuda-agent")
    daemonset["spec"]["template"]["spec"]["nodeSelctor"] = {}
    (wrong,) = faults(daemonset, NEWEST)
    assert "'nodeSelctor' was unexpected" in wrong


def test_with_the_driver_in_usr_everything_is_as_by_default(chart: Chart) -> None:
    own = "otherwise each has a CA and a token of its own"
    values: Object = {"webhook": {"certificates": {"patch": True}}, "agent": {"names": "all"}}
    rendered = chart.render_all({each: {**values, "platform": each} for each in ("", "kubeadm", *LIKE_KUBEADM)})
    assert [each for each, found in rendered.items() if found.objects != rendered[""].objects] == [], own


def on_each(chart: Chart) -> dict[str, Rendered]:
    return chart.render_all({name: {"platform": name, "agent": {}} for name in PLATFORMS})


def test_the_agent_gets_what_the_table_says(chart: Chart, subtests: pytest.Subtests) -> None:
    for platform, rendered in on_each(chart).items():
        with subtests.test(platform):
            check_paths(rendered, {**TABLE["default"], **TABLE[platform]})


def check_paths(rendered: Rendered, row: dict[str, str]) -> None:
    pod = rendered.agent
    found = paths(pod)
    assert found["device-plugins"] == mounts(pod)["device-plugins"]["mountPath"] == "/var/lib/kubelet/device-plugins"
    assert found["plugins-registry"] == f"{row['agent.kubelet.root']}/plugins_registry"
    assert flags(pod).get("kubelet-root", "/var/lib/kubelet") == row["agent.kubelet.root"]
    assert found["state"] == mounts(pod)["state"]["mountPath"] == row["agent.stateDirectory"]
    assert flags(pod).get("virtual-manager-path", "/etc/gpu-manager/vm") == f"{found['state']}/vm"
    warned = [each for each in rendered.extender["args"] if each.startswith("--state-directory=")]
    assert warned == ([f"--state-directory={found['state']}"] if found["state"] != "/etc/gpu-manager" else [])
    assert ("runtimeClassName" in pod) == (row["agent.driver.from"] == "runtime")
    if row["agent.driver.from"] != "runtime":
        socket = flags(pod).get("container-runtime-endpoint", "/run/containerd/containerd.sock")
        assert socket == row["agent.containerRuntime.socket"]
        assert found["runtime"] == str(Path(socket).parent)


def test_the_two_directories_of_kubelet_are_set_apart(chart: Chart) -> None:
    """A kubelet that was built with another constant, or whose directory is mounted elsewhere."""
    kubelet = {"root": "/data/kubelet", "devicePlugins": "/data/plugins"}
    pod = chart.render({"agent": {"kubelet": kubelet}}).agent
    assert (flags(pod)["kubelet-root"], flags(pod)["device-plugin-path"]) == ("/data/kubelet", "/data/plugins")
    assert paths(pod)["device-plugins"] == mounts(pod)["device-plugins"]["mountPath"] == "/data/plugins"
    assert paths(pod)["pod-resources"] == "/data/kubelet/pod-resources"


def test_a_driver_elsewhere_is_seen_also_when_it_comes_later(chart: Chart, subtests: pytest.Subtests) -> None:
    """The parent is mounted: a mount below it propagates, while one over the mounted directory itself would not."""
    roots = {name: Path(row["agent.driver.root"]) for name, row in TABLE.items() if "agent.driver.root" in row}
    del roots["default"]
    rendered = on_each(chart)
    for platform, root in roots.items():
        with subtests.test(platform):
            pod = rendered[platform].agent
            mount = mounts(pod)["driver"]
            assert (paths(pod)["driver"], mount["mountPath"]) == (str(root.parent), "/host")
            assert (mount["mountPropagation"], mount["readOnly"]) == ("HostToContainer", True)
            assert flags(pod)["driver-root"] == f"/host/{root.name}"
            assert not {"host-usr", "host-etc", "modules"} & mounts(pod).keys()


def test_what_the_operator_sets_wins_over_the_platform(chart: Chart) -> None:
    pod = on(chart, "gke", driver={"root": "/opt/nvidia"}, stateDirectory="/data/vcuda").agent
    assert (flags(pod)["driver-root"], paths(pod)["driver"]) == ("/host/nvidia", "/opt")
    assert paths(pod)["state"] == "/data/vcuda"
    assert "host-usr" in paths(on(chart, "gpu-operator", driver={"root": "/"}).agent)


GUIDE = manifests.ROOT / "docs" / "how-to" / "platforms.md"


def test_the_guide_has_each_platform_and_the_table() -> None:
    text = GUIDE.read_text()
    named = set(re.findall(r"platform=([a-z0-9-]+)", text))
    assert named | {"kubeadm"} == set(PLATFORMS)
    head, _, *rows = [line.strip("|").split("|") for line in text.splitlines() if line.count("|") == 7]
    keys = [each.strip(" `") for each in head[1:6]]
    assert keys == list(TABLE["default"])
    shown: Object = {}
    for name, *cells in rows:
        values = {key: cell.strip(" `") for key, cell in zip(keys, cells, strict=True) if cell.strip()}
        shown |= dict.fromkeys((each.strip(" `") for each in name.split(",")), values)
    assert shown.pop("empty") == TABLE["default"]
    plain = {name: shown.pop(name) for name in ("kubeadm", "eks", "aks")}
    assert all(values == TABLE["default"] for values in plain.values())
    assert shown == {name: row for name, row in TABLE.items() if row and name != "default"}


def test_openshift_gets_a_constraint_for_the_agent_and_no_uid_for_the_scheduler(chart: Chart) -> None:
    rendered = on(chart, "openshift")
    constraint = rendered.get("SecurityContextConstraints", "vcuda-agent")
    assert constraint["users"] == [f"system:serviceaccount:{NAMESPACE}:vcuda-agent"]
    assert constraint["allowPrivilegedContainer"] is True
    assert constraint["readOnlyRootFilesystem"] is False, "true would refuse what agent.securityContext says"
    assert constraint["seccompProfiles"][0] == "unconfined", "the first is set in containers that name none"
    assert {"hostPath", "persistentVolumeClaim", "csi"} <= set(constraint["volumes"]), (
        "the operator's extra volumes too"
    )
    template = rendered.get("DaemonSet", "vcuda-agent")["spec"]["template"]
    assert template["metadata"]["annotations"]["openshift.io/required-scc"] == "vcuda-agent"
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & rendered.scheduler["securityContext"].keys()
    assert rendered.scheduler["securityContext"]["runAsNonRoot"] is True
    unprivileged = on(chart, "openshift", driver={"from": "runtime"})
    assert unprivileged.get("SecurityContextConstraints", "vcuda-agent")["allowPrivilegedContainer"] is False


def test_a_chart_that_contains_this_one_sets_the_platform_and_has_globals_of_its_own(helm: str, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    shutil.copytree(manifests.CHART, outer / "charts" / "vcuda")
    (outer / "Chart.yaml").write_text("apiVersion: v2\nname: outer\nversion: 1.0.0\n")
    values = "global: {imageRegistry: mirror, theirs: 1}\nvcuda: {platform: k0s}\n"
    (outer / "values.yaml").write_text(values)
    rendered = {each["kind"]: each for each in documents(manifests.render(helm, chart=outer))}
    pod = rendered["DaemonSet"]["spec"]["template"]["spec"]
    assert paths(pod)["plugins-registry"] == "/var/lib/k0s/kubelet/plugins_registry"
    assert pod["containers"][0]["image"] == "mirror/vcuda:0.1.0"


def test_elsewhere_there_is_no_constraint(chart: Chart, defaults: Rendered) -> None:
    assert not defaults.names("SecurityContextConstraints")
    assert chart.render({}, "--api-versions=security.openshift.io/v1").names("SecurityContextConstraints")
