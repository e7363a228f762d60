"""What the chart renders: one source with the plain manifests, rights with their reasons, the webhook and the agent."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

from deviceplugin.kube.node_publisher import GPU_MANAGER_MODEL, gpu_labels
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Object, Rendered, lint, render, settings
from tests.daemonset.manifests import ROOT, base, confinement, documents, with_component
from tests.daemonset.value_sets import VALUE_SETS

AS_VALUES: dict[str, Object] = {
    "cdi": {"cdi": {"enabled": True}},
    "nodes-proxy": {"kubelet": {"nodesProxy": True}},
    "nvidia-runtime": {"driver": {"from": "runtime"}},
}
HELMS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
COMBINATIONS = [chosen for size in range(len(AS_VALUES) + 1) for chosen in itertools.combinations(AS_VALUES, size)]


def test_the_chart_has_nothing_to_complain_about(helm: str) -> None:
    lint(helm)
    lint(helm, "--set=webhook.certificates.from=cert-manager,monitoring.enabled=true,agent.confined=false")
    lint(helm, "--set=agent.networkPolicy.enabled=true")


def test_the_plain_manifests_are_what_the_chart_renders(helm: str) -> None:
    stale = [file for file, text in manifests.manifests().items() if (ROOT / file).read_text() != text]
    assert not stale, "run scripts/manifests"


@pytest.mark.parametrize("folder", ["base", "scheduler", "components/network-policy"])
def test_a_kustomization_names_every_manifest_of_its_folder(folder: str) -> None:
    (kustomization,) = documents(f"{folder}/kustomization.yaml")
    files = {path.name for path in (ROOT / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files


@pytest.mark.parametrize("components", COMBINATIONS, ids="+".join)
def test_a_component_and_the_value_of_the_same_meaning_give_the_same(
    helm: str, tmp_path: Path, components: tuple[str, ...]
) -> None:
    expected = base()
    values: Object = {}
    for name in components:
        expected = with_component(name, expected)
        values |= AS_VALUES[name]
    chosen = {"agent": values, "scheduler": {"enabled": False}}
    rendered = render(helm, chosen, folder=tmp_path, namespace="kube-system")
    policies = confinement()
    objects = [_without_helms_labels(each) for each in rendered.installed]
    assert [each for each in objects if each in policies] == policies
    assert {each["kind"]: each for each in objects if each not in policies} == expected


def _without_helms_labels(each: Object) -> Object:
    """As `kubectl apply` installs it."""
    labels = {key: value for key, value in each["metadata"]["labels"].items() if key not in HELMS}
    return {**each, "metadata": {**each["metadata"], "labels": labels}}


def test_without_its_policies_the_agent_is_installed_all_the_same(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, {"agent": {"confined": False}, "scheduler": {"enabled": False}}, folder=tmp_path)
    assert {each["kind"] for each in rendered.installed} == base().keys()


@pytest.mark.parametrize("version", ["1.30.0", "v1.31.9+k3s1", "1.31.7-eks-ba24e9c"])
def test_where_tokens_do_not_name_the_node_somebody_must_decide(helm: str, version: str) -> None:
    """Security 1: nobody gets the agent without its policies who has not asked for it."""
    command = [helm, "template", "vcuda", str(manifests.CHART), f"--kube-version={version}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "agent.confined needs an API server of 1.32 or newer" in done.stderr
    assert "set agent.confined=false" in done.stderr
    for values in ("agent.confined=false", "agent.enabled=false"):
        subprocess.run([*command, f"--set={values}"], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize("version", ["1.32.0", "v1.32.4+k3s1", "1.33.5-eks-ba24e9c"])
def test_the_policies_are_installed_on_every_distribution_whose_tokens_name_the_node(helm: str, version: str) -> None:
    command = [helm, "template", "vcuda", str(manifests.CHART), f"--kube-version={version}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert "name: vcuda-agent-pods" in done.stdout


@pytest.mark.parametrize("domain", ["tencent.com", "gpu.example.org"])
def test_the_policies_name_the_labels_and_annotations_that_the_agent_writes(
    helm: str, tmp_path: Path, domain: str
) -> None:
    """Security 17: these and no others; --node-labels adds its own."""
    values = {"resourceDomain": domain, "agent": {"flags": {"node-labels": "pool=gpu, team=a=b"}}}
    rendered = render(helm, values, folder=tmp_path)
    spec = rendered.get("ValidatingAdmissionPolicy", "vcuda-agent-nodes")["spec"]
    written = json.loads(_expressions(spec["variables"])["written"])
    gpu = Gpu(GpuUuid("GPU-1"), index=0, minor=0, model="NVIDIA A100", memory_bytes=80 << 30)
    inventory = Inventory((gpu,), Topology((0,)), Driver("550.1", (12, 4)))
    assert written == [*gpu_labels(inventory, domain=domain, extra={}), "pool", "team"]
    names = annotation_names(domain)
    rules = " ".join(each["expression"] for each in spec["validations"])
    assert set(re.findall(rf'a in (\["{re.escape(domain)}/[^\]]*\])', rules)) == {
        f'["{names.inventory}", "{names.node_labels}"]'
    }
    pods = rendered.get("ValidatingAdmissionPolicy", "vcuda-agent-pods")["spec"]
    ours = set(re.findall(r'"([^"]*)"', pods["validations"][-1]["expression"])) - {"UPDATE"}
    assert ours == {*names.machine_written, names.gpu_index_prefix}


def test_the_network_policy_of_the_agent_lets_in_the_named_peers_and_no_others(helm: str, tmp_path: Path) -> None:
    assert not render(helm, {}, folder=tmp_path).names("NetworkPolicy")
    chosen: Object = {"agent": {"networkPolicy": {"enabled": True}}}
    closed = render(helm, chosen, folder=tmp_path).get("NetworkPolicy", "vcuda-agent")["spec"]
    scheduler = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "vcuda-scheduler"}}}
    assert (closed["policyTypes"], [rule["from"] for rule in closed["ingress"]]) == (["Ingress"], [[scheduler]])
    peers = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    chosen["agent"]["networkPolicy"]["from"] = peers
    rendered = render(helm, chosen, folder=tmp_path)
    policy = rendered.get("NetworkPolicy", "vcuda-agent")["spec"]
    pod = rendered.get("DaemonSet", "vcuda-agent")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [scheduler, *peers]
    assert [each["port"] for each in rule["ports"]] == [each["name"] for each in pod["spec"]["containers"][0]["ports"]]


ELSEWHERE = {"vcuda-scheduler-authentication-reader": "kube-system"}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_every_object_is_in_the_namespace_of_the_release(helm: str, tmp_path: Path, values: Object) -> None:
    others = {("vcuda-doctor", "default"), ("vcuda-volcano", values.get("volcano", {}).get("namespace"))}
    for each in render(helm, values, folder=tmp_path):
        name, found = each["metadata"]["name"], each["metadata"].get("namespace", NAMESPACE)
        assert found == ELSEWHERE.get(name, NAMESPACE) or (name, found) in others
        for subject in each.get("subjects", []):
            assert subject["namespace"] == NAMESPACE or name in ("vcuda-explain", "vcuda-volcano")


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_no_object_grants_everything(helm: str, tmp_path: Path, values: Object) -> None:
    rendered = render(helm, values, folder=tmp_path)
    for kind, name in rendered.objects:
        if kind in ("ClusterRole", "Role"):
            rules = rendered.get(kind, name)["rules"]
            assert not any("*" in "".join([part for parts in rule.values() for part in parts]) for rule in rules)


def test_another_domain_leaves_no_trace_of_the_default(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, {"resourceDomain": "gpu.example.org"}, folder=tmp_path)
    assert "tencent" not in str(rendered.objects).replace(GPU_MANAGER_MODEL, "")
    assert "gpu.example.org/vcuda-core" in rendered.webhook["matchConditions"][0]["expression"]


def test_a_cluster_without_match_conditions_is_refused(helm: str) -> None:
    command = [helm, "template", "vcuda", str(manifests.CHART), "--kube-version=1.29.9"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "chart requires kubeVersion: >=1.30.0-0" in done.stderr


def test_no_priority_class_is_named_where_none_is_wanted(helm: str, tmp_path: Path, defaults: Rendered) -> None:
    assert defaults.agent["priorityClassName"] == "system-node-critical"
    assert defaults.scheduler["priorityClassName"] == "system-cluster-critical"
    rendered = render(helm, VALUE_SETS["everything else"], folder=tmp_path)
    assert "priorityClassName" not in rendered.agent.keys() | rendered.scheduler.keys()


def test_with_on_delete_agents_are_updated_when_their_pods_are_deleted(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, VALUE_SETS["agent alone"], folder=tmp_path)
    assert rendered.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_with_claims_the_next_agent_starts_beside_the_old_one(helm: str, tmp_path: Path, defaults: Rendered) -> None:
    """A call for a claim that fails is repeated only after a minute."""
    without = defaults.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"]["rollingUpdate"]
    assert without == {"maxSurge": 0, "maxUnavailable": 1}
    rendered = render(helm, {"agent": {"dra": {"enabled": True}, "maxUnavailable": "10%"}}, folder=tmp_path)
    rolling = rendered.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": "10%", "maxUnavailable": 0}


def test_the_webhook_fails_closed_for_gpu_pods_and_leaves_the_systems_namespaces_alone(defaults: Rendered) -> None:
    hook = defaults.webhook
    assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Fail", "None", 5)
    (namespaces, *opted_out) = hook["namespaceSelector"]["matchExpressions"]
    assert namespaces["operator"] == "NotIn"
    assert set(namespaces["values"]) == {NAMESPACE, "kube-system"}
    assert {each["key"] for each in opted_out} == {"tencent.com/vcuda-webhook", "hami.io/webhook"}


def test_cert_manager_makes_what_we_show_and_what_the_api_server_trusts(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, VALUE_SETS["cert-manager"], folder=tmp_path)
    certificate = rendered.get("Certificate", "vcuda-scheduler")["spec"]
    asked = rendered.webhook["clientConfig"]["service"]
    assert f"{asked['name']}.{asked['namespace']}.svc" in certificate["dnsNames"]
    assert (
        rendered.get("Issuer", certificate["issuerRef"]["name"])["spec"]["ca"]["secretName"]
        == (rendered.get("Certificate", "vcuda-scheduler-ca")["spec"]["secretName"])
    )
    hook = rendered.get("MutatingWebhookConfiguration", "vcuda-scheduler")
    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/vcuda-scheduler"
    paths = {mount["mountPath"] for mount in rendered.scheduler["initContainers"][0]["volumeMounts"]}
    assert paths == {"/tmp", str(settings(rendered).certificates.cert_file.parent)}  # type: ignore[union-attr]


def test_an_issuer_of_the_cluster_signs_where_one_is_named(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, VALUE_SETS["an issuer of the cluster"], folder=tmp_path)
    assert not rendered.names("Issuer")
    assert rendered.get("Certificate", "vcuda-scheduler")["spec"]["issuerRef"] == {
        "name": "ours",
        "kind": "ClusterIssuer",
    }


def test_nothing_is_there_for_prometheus_unless_asked(defaults: Rendered, helm: str, tmp_path: Path) -> None:
    assert not defaults.names("ServiceMonitor") | defaults.names("PodMonitor")
    rendered = render(helm, {"monitoring": {"enabled": True, "labels": {"release": "prom"}}}, folder=tmp_path)
    service, pods = rendered.get("ServiceMonitor", "vcuda-scheduler"), rendered.get("PodMonitor", "vcuda-agent")
    assert service["metadata"]["labels"]["release"] == pods["metadata"]["labels"]["release"] == "prom"
    assert service["spec"]["selector"]["matchLabels"].items() <= (
        rendered.get("Service", "vcuda-scheduler")["metadata"]["labels"].items()
    )


def test_emulated_gpus_need_no_privilege_and_nothing_of_the_nodes_driver(helm: str, tmp_path: Path) -> None:
    pod = render(helm, VALUE_SETS["emulated GPUs"], folder=tmp_path).agent
    (nodes,), (agent,) = pod["initContainers"], pod["containers"]
    assert nodes["image"] == agent["image"]
    assert (nodes["securityContext"]["privileged"], agent["securityContext"]["privileged"]) == (False, False)
    assert nodes["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert not paths & {"/dev", "/usr", "/etc", "/lib/modules"}
    env = {each["name"]: each.get("value") for each in agent["env"]}
    profile = Path(str(env["VCUDA_EMULATOR_PROFILE"]))
    assert (manifests.ROOT / "emulator/profiles" / profile.name).exists()
    assert str(Path(str(env["VCUDA_EMULATOR_STATE"])).parent) == agent["args"][3].removeprefix("--device-root=")


def test_who_may_ask_for_explanations_may_do_nothing_else(helm: str, tmp_path: Path) -> None:
    defaults = render(helm, folder=tmp_path)
    assert {(rule["resources"][0], *rule["verbs"]) for rule in defaults.get("Role", "vcuda-explain")["rules"]} == {
        ("services/proxy", "get"),
        ("pods/proxy", "get"),
        ("serviceaccounts/token", "create"),
    }
    (token,) = (rule for rule in defaults.get("Role", "vcuda-explain")["rules"] if "create" in rule["verbs"])
    assert token["resourceNames"] == ["vcuda-view"]
    right = {"nonResourceURLs": ["/vcuda/view"], "verbs": ["get"]}
    assert defaults.get("ClusterRole", "vcuda-view")["rules"] == [right]
    assert "vcuda-explain" not in defaults.names("RoleBinding")
    subject = {"kind": "Group", "name": "ops", "apiGroup": "rbac.authorization.k8s.io"}
    given = render(helm, {"operators": {"subjects": [subject]}}, folder=tmp_path)
    assert given.get("RoleBinding", "vcuda-explain")["subjects"] == [subject]
    assert "vcuda-explain" not in render(helm, {"operators": {"role": False}}, folder=tmp_path).names("Role")


def test_only_our_accounts_are_let_through_by_the_policy(defaults: Rendered) -> None:
    policy = defaults.get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    named = set(re.findall(r"system:serviceaccount:[a-z-]+:[a-z-]+", str(policy["matchConditions"])))
    assert named == {f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("vcuda-agent", "vcuda-scheduler")}


@pytest.mark.parametrize(("written", "meant"), [(False, "off"), (True, "all")])
def test_what_yaml_makes_of_a_scope_means_the_same(helm: str, tmp_path: Path, written: bool, meant: str) -> None:
    found, expected = (
        render(helm, {"hami": {"translate": scope}}, folder=tmp_path).webhook["matchConditions"]
        for scope in (written, meant)
    )
    assert found == expected


def test_the_webhook_fails_closed_and_is_asked_about_new_pods_only(defaults: Rendered) -> None:
    hook = defaults.webhook
    assert (hook["failurePolicy"], hook["sideEffects"]) == ("Fail", "None")
    assert hook["admissionReviewVersions"] == ["v1"]
    assert hook["rules"][0]["operations"] == ["CREATE"]


def test_the_policy_is_in_force_and_knows_another_domain(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, {"resourceDomain": "gpu.example.org"}, folder=tmp_path)
    binding = rendered.get("ValidatingAdmissionPolicyBinding", "vcuda-annotations")
    assert binding["spec"]["policyName"] == "vcuda-annotations"
    policy = rendered.get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    expressions = _expressions(policy["variables"]) | _expressions(rendered.webhook["matchConditions"])
    assert "gpu.example.org/vcuda-allocation" in expressions["changed"]
    assert "tencent.com" not in "".join(expressions.values())


def test_pods_with_hamis_resources_by_other_names_are_sent_too(helm: str, tmp_path: Path) -> None:
    expressions = _expressions(
        render(helm, VALUE_SETS["HAMi by other names"], folder=tmp_path).webhook["matchConditions"]
    )
    assert "example.com/vgpu" in expressions["requests-gpus-or-has-vcuda-annotations"]


def _expressions(items: list[Object]) -> dict[str, str]:
    return {item["name"]: item["expression"] for item in items}
