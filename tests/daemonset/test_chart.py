"""What the chart renders: one source with the plain manifests, rights with their reasons, the webhook and the agent."""

import base64
import itertools
import json
import re
from pathlib import Path

import pytest

from deviceplugin.kube.node_publisher import GPU_MANAGER_MODEL, gpu_labels
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Chart, Object, Rendered, lint, settings
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


def test_a_kustomization_names_every_manifest_of_its_folder() -> None:
    folders = ("base", "scheduler", "components/network-policy")
    named = {folder: set(documents(f"{folder}/kustomization.yaml")[0]["resources"]) for folder in folders}
    files = {folder: {path.name for path in (ROOT / folder).glob("*.yaml")} for folder in folders}
    assert named == {folder: names - {"kustomization.yaml"} for folder, names in files.items()}


def test_a_component_and_the_value_of_the_same_meaning_give_the_same(chart: Chart, subtests: pytest.Subtests) -> None:
    chosen: dict[str, Object] = {"+".join(names): _with_values(names) for names in COMBINATIONS}
    policies = confinement()
    for name, rendered in chart.render_all(chosen, "--namespace=kube-system").items():
        with subtests.test(name):
            objects = [_without_helms_labels(each) for each in rendered.installed]
            assert [each for each in objects if each in policies] == policies
            expected = base()
            for component in filter(None, name.split("+")):
                expected = with_component(component, expected)
            assert {each["kind"]: each for each in objects if each not in policies} == expected


def _with_values(components: tuple[str, ...]) -> Object:
    agent = {key: value for name in components for key, value in AS_VALUES[name].items()}
    return {"agent": {"names": "all", **agent}, "scheduler": {"enabled": False}}


def _without_helms_labels(each: Object) -> Object:
    """As `kubectl apply` installs it."""
    labels = {key: value for key, value in each["metadata"]["labels"].items() if key not in HELMS}
    return {**each, "metadata": {**each["metadata"], "labels": labels}}


def test_without_its_policies_the_agent_is_installed_all_the_same(chart: Chart) -> None:
    rendered = chart.render({"agent": {"confined": False, "names": "all"}, "scheduler": {"enabled": False}})
    assert {each["kind"] for each in rendered.installed} == base().keys()


def test_where_tokens_do_not_name_the_node_somebody_must_decide(chart: Chart) -> None:
    """Security 1: nobody gets the agent without its policies who has not asked for it."""
    decided = {str(agent): {"agent": agent} for agent in ({"confined": False}, {"enabled": False})}
    for version in ("1.30.0", "v1.31.9+k3s1", "1.31.7-eks-ba24e9c"):
        said = chart.refusal(version=version)
        assert "agent.confined needs an API server of 1.32 or newer" in said, version
        assert "set agent.confined=false" in said, version
        for rendered in chart.render_all(decided, f"--kube-version={version}").values():
            assert "vcuda-agent-pods" not in rendered.names("ValidatingAdmissionPolicy"), version


def test_the_policies_are_installed_on_every_distribution_whose_tokens_name_the_node(chart: Chart) -> None:
    for version in ("1.32.0", "v1.32.4+k3s1", "1.33.5-eks-ba24e9c"):
        rendered = chart.render({}, f"--kube-version={version}")
        assert "vcuda-agent-pods" in rendered.names("ValidatingAdmissionPolicy"), version


@pytest.mark.parametrize("domain", ["tencent.com", "gpu.example.org"])
def test_the_policies_name_the_labels_and_annotations_that_the_agent_writes(chart: Chart, domain: str) -> None:
    """Security 17: these and no others; --node-labels adds its own."""
    values = {each: _of_domain(each) for each in ("tencent.com", "gpu.example.org")}
    rendered = chart.render_all(values)[domain]
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


def _of_domain(domain: str) -> Object:
    return {"resourceDomain": domain, "agent": {"flags": {"node-labels": "pool=gpu, team=a=b"}}}


def test_the_network_policy_of_the_agent_lets_in_the_named_peers_and_no_others(chart: Chart) -> None:
    assert not chart.render().names("NetworkPolicy")
    chosen: Object = {"agent": {"networkPolicy": {"enabled": True}}}
    closed = chart.render(chosen).get("NetworkPolicy", "vcuda-agent")["spec"]
    scheduler = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "vcuda-scheduler"}}}
    assert (closed["policyTypes"], [rule["from"] for rule in closed["ingress"]]) == (["Ingress"], [[scheduler]])
    peers = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    chosen["agent"]["networkPolicy"]["from"] = peers
    rendered = chart.render(chosen)
    policy = rendered.get("NetworkPolicy", "vcuda-agent")["spec"]
    pod = rendered.get("DaemonSet", "vcuda-agent")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [scheduler, *peers]
    assert [each["port"] for each in rule["ports"]] == [each["name"] for each in pod["spec"]["containers"][0]["ports"]]


ELSEWHERE = {"vcuda-scheduler-authentication-reader": "kube-system"}


def test_every_object_is_in_the_namespace_of_the_release(chart: Chart, subtests: pytest.Subtests) -> None:
    for chosen, rendered in chart.render_all(VALUE_SETS).items():
        with subtests.test(chosen):
            volcano = VALUE_SETS[chosen].get("volcano", {}).get("namespace")
            others = {("vcuda-doctor", "default"), ("vcuda-volcano", volcano)}
            for each in rendered:
                name, found = each["metadata"]["name"], each["metadata"].get("namespace", NAMESPACE)
                assert found == ELSEWHERE.get(name, NAMESPACE) or (name, found) in others
                for subject in each.get("subjects", []):
                    assert subject.get("namespace") == NAMESPACE or name in (
                        "vcuda-explain",
                        "vcuda-tenant",
                        "vcuda-volcano",
                    )


def test_no_object_grants_everything(chart: Chart) -> None:
    rules = [
        (chosen, each["metadata"]["name"], rule)
        for chosen, rendered in chart.render_all(VALUE_SETS).items()
        for each in rendered
        if each["kind"] in ("ClusterRole", "Role")
        for rule in each["rules"]
    ]
    assert len(rules) > 100
    assert [case for case in rules if any("*" in part for parts in case[-1].values() for part in parts)] == []


def test_another_domain_leaves_no_trace_of_the_default(chart: Chart) -> None:
    rendered = chart.render({"resourceDomain": "gpu.example.org"})
    assert "tencent" not in str(rendered.objects).replace(GPU_MANAGER_MODEL, "")
    assert "gpu.example.org/vcuda-core" in rendered.webhook["matchConditions"][0]["expression"]


def test_a_cluster_without_match_conditions_is_refused(chart: Chart) -> None:
    assert "chart requires kubeVersion: >=1.30.0-0" in chart.refusal(version="1.29.9")


def test_no_priority_class_is_named_where_none_is_wanted(chart: Chart, defaults: Rendered) -> None:
    assert defaults.agent["priorityClassName"] == "system-node-critical"
    assert defaults.scheduler["priorityClassName"] == "system-cluster-critical"
    rendered = chart.render(VALUE_SETS["everything else"])
    assert "priorityClassName" not in rendered.agent.keys() | rendered.scheduler.keys()


def test_with_on_delete_agents_are_updated_when_their_pods_are_deleted(chart: Chart) -> None:
    rendered = chart.render(VALUE_SETS["agent alone"])
    assert rendered.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_with_claims_the_next_agent_starts_beside_the_old_one(chart: Chart, defaults: Rendered) -> None:
    """A call for a claim that fails is repeated only after a minute."""
    without = defaults.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"]["rollingUpdate"]
    assert without == {"maxSurge": 0, "maxUnavailable": 1}
    rendered = chart.render({"agent": {"dra": {"enabled": True}, "maxUnavailable": "10%"}})
    rolling = rendered.get("DaemonSet", "vcuda-agent")["spec"]["updateStrategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": "10%", "maxUnavailable": 0}


def test_the_webhook_fails_closed_for_new_gpu_pods_and_leaves_the_systems_namespaces_alone(defaults: Rendered) -> None:
    hook = defaults.webhook
    assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Fail", "None", 5)
    assert (hook["admissionReviewVersions"], hook["rules"][0]["operations"]) == (["v1"], ["CREATE"])
    (namespaces, *opted_out) = hook["namespaceSelector"]["matchExpressions"]
    assert namespaces["operator"] == "NotIn"
    assert set(namespaces["values"]) == {NAMESPACE, "kube-system"}
    assert {each["key"] for each in opted_out} == {"tencent.com/vcuda-webhook", "hami.io/webhook"}


def test_cert_manager_makes_what_we_show_and_what_the_api_server_trusts(chart: Chart) -> None:
    rendered = chart.render(VALUE_SETS["cert-manager"])
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
    assert paths == {"/tmp", "/etc/vcuda/names", str(settings(rendered).certificates.cert_file.parent)}  # type: ignore[union-attr]


def test_an_issuer_of_the_cluster_signs_where_one_is_named(chart: Chart) -> None:
    rendered = chart.render(VALUE_SETS["an issuer of the cluster"])
    assert not rendered.names("Issuer")
    assert rendered.get("Certificate", "vcuda-scheduler")["spec"]["issuerRef"] == {
        "name": "ours",
        "kind": "ClusterIssuer",
    }


def test_what_is_there_for_prometheus_has_its_labels_and_finds_the_service(chart: Chart) -> None:
    rendered = chart.render({"monitoring": {"enabled": True, "labels": {"release": "prom"}}})
    service, pods = rendered.get("ServiceMonitor", "vcuda-scheduler"), rendered.get("PodMonitor", "vcuda-agent")
    assert service["metadata"]["labels"]["release"] == pods["metadata"]["labels"]["release"] == "prom"
    assert service["spec"]["selector"]["matchLabels"].items() <= (
        rendered.get("Service", "vcuda-scheduler")["metadata"]["labels"].items()
    )


def test_emulated_gpus_need_no_privilege_and_nothing_of_the_nodes_driver(chart: Chart) -> None:
    pod = chart.render(VALUE_SETS["emulated GPUs"]).agent
    (nodes,), (agent,) = pod["initContainers"], pod["containers"]
    assert nodes["image"] == agent["image"]
    assert (nodes["securityContext"]["privileged"], agent["securityContext"]["privileged"]) == (False, False)
    assert nodes["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert not paths & {"/dev", "/usr", "/etc", "/lib/modules"}
    env = {each["name"]: each.get("value") for each in agent["env"]}
    profile = Path(str(env["VCUDA_EMULATOR_PROFILE"]))
    assert (manifests.ROOT / "emulator/profiles" / profile.with_suffix(".json").name).exists()
    assert str(Path(str(env["VCUDA_EMULATOR_STATE"])).parent) == agent["args"][3].removeprefix("--device-root=")


def test_who_may_ask_for_explanations_may_do_nothing_else(chart: Chart, defaults: Rendered) -> None:
    assert {(rule["resources"][0], *rule["verbs"]) for rule in defaults.get("Role", "vcuda-explain")["rules"]} == {
        ("services/proxy", "get"),
        ("serviceaccounts/token", "create"),
    }
    (token,) = (rule for rule in defaults.get("Role", "vcuda-explain")["rules"] if "create" in rule["verbs"])
    assert token["resourceNames"] == ["vcuda-view"]
    right = {"nonResourceURLs": ["/vcuda/view"], "verbs": ["get"]}
    assert defaults.get("ClusterRole", "vcuda-view")["rules"] == [right]
    assert "vcuda-explain" not in defaults.names("RoleBinding")
    subject = {"kind": "Group", "name": "ops", "apiGroup": "rbac.authorization.k8s.io"}
    given = chart.render({"operators": {"subjects": [subject]}})
    assert given.get("RoleBinding", "vcuda-explain")["subjects"] == [subject]
    assert "vcuda-explain" not in chart.render({"operators": {"role": False}}).names("Role")


def test_a_tenant_may_ask_the_scheduler_and_do_nothing_else(chart: Chart, defaults: Rendered) -> None:
    (rule,) = defaults.get("Role", "vcuda-tenant")["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "resourceNames": ["https:vcuda-scheduler:https"],
        "verbs": ["get"],
    }
    assert "vcuda-tenant" not in defaults.names("RoleBinding")
    subject = {"kind": "Group", "name": "researchers", "apiGroup": "rbac.authorization.k8s.io"}
    given = chart.render({"tenants": {"subjects": [subject]}})
    assert given.get("RoleBinding", "vcuda-tenant")["subjects"] == [subject]
    assert "vcuda-explain" not in given.names("RoleBinding")
    assert "vcuda-tenant" not in chart.render({"tenants": {"role": False}}).names("Role")
    assert not [each for each in defaults.installed if "pods/proxy" in str(each.get("rules"))], "nobody needs it"


def test_agents_name_pods_to_the_scheduler_and_to_prometheus_and_by_a_value_to_all(
    chart: Chart, defaults: Rendered
) -> None:
    token = base64.b64decode(defaults.get("Secret", "vcuda-agent-names")["data"]["token"])
    assert len(token) == 48
    mounted = {"name": "names", "mountPath": "/etc/vcuda/names", "readOnly": True}
    volume = {"name": "names", "secret": {"secretName": "vcuda-agent-names", "optional": True}}
    (agent,) = defaults.agent["containers"]
    assert {"--query-names=false", "--query-token-file=/etc/vcuda/names/token"} < set(agent["args"])
    assert "--agent-token-file=/etc/vcuda/names/token" in defaults.extender["args"]
    for pod, container in ((defaults.agent, agent), (defaults.scheduler, defaults.extender)):
        assert mounted in container["volumeMounts"]
        assert volume in pod["volumes"]
    monitored = {"monitoring": {"enabled": True}}
    (endpoint,) = chart.render(monitored).get("PodMonitor", "vcuda-agent")["spec"]["podMetricsEndpoints"]
    credentials = {"name": "vcuda-agent-names", "key": "token"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": credentials}
    to_all = chart.render({**monitored, "agent": {"names": "all"}})
    assert "vcuda-agent-names" not in to_all.names("Secret") | {str(each) for each in to_all}
    assert "token-file" not in str(to_all.agent) + str(to_all.extender)
    assert "query-names: the chart sets this flag itself; set the value agent.names instead" in chart.refusal(
        {"agent": {"flags": {"query-names": False}}}
    )


def test_the_replicas_reach_the_one_that_leads(chart: Chart) -> None:
    peer = {"ipBlock": {"cidr": "10.0.0.0/24"}}
    policy = chart.render({"scheduler": {"networkPolicy": {"enabled": True, "from": [peer]}}})
    (rule,) = policy.get("NetworkPolicy", "vcuda-scheduler")["spec"]["ingress"]
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "vcuda-scheduler"}}}
    assert rule["from"] == [own, peer]


def test_only_our_accounts_are_let_through_by_the_policy(defaults: Rendered) -> None:
    policy = defaults.get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    named = set(re.findall(r"system:serviceaccount:[a-z-]+:[a-z-]+", str(policy["matchConditions"])))
    assert named == {f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("vcuda-agent", "vcuda-scheduler")}


def test_what_yaml_makes_of_a_scope_means_the_same(chart: Chart) -> None:
    def conditions(scope: object) -> object:
        return chart.render({"hami": {"translate": scope}}).webhook["matchConditions"]

    assert (conditions(False), conditions(True)) == (conditions("off"), conditions("all"))


def test_the_policy_is_in_force_and_knows_another_domain(chart: Chart) -> None:
    rendered = chart.render({"resourceDomain": "gpu.example.org"})
    binding = rendered.get("ValidatingAdmissionPolicyBinding", "vcuda-annotations")
    assert binding["spec"]["policyName"] == "vcuda-annotations"
    policy = rendered.get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    expressions = _expressions(policy["variables"]) | _expressions(rendered.webhook["matchConditions"])
    assert "gpu.example.org/vcuda-allocation" in expressions["changed"]
    assert "tencent.com" not in "".join(expressions.values())


def test_pods_with_hamis_resources_by_other_names_are_sent_too(chart: Chart) -> None:
    expressions = _expressions(chart.render(VALUE_SETS["HAMi by other names"]).webhook["matchConditions"])
    assert "example.com/vgpu" in expressions["requests-gpus-or-has-vcuda-annotations"]


def _expressions(items: list[Object]) -> dict[str, str]:
    return {item["name"]: item["expression"] for item in items}


def agent_terms(chart: Chart, values: Object) -> list[Object]:
    affinity = chart.render(values).agent["affinity"]["nodeAffinity"]
    terms: list[Object] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return terms


def has(key: str, *values: str) -> Object:
    return {"key": key, "operator": "In", "values": list(values)} if values else {"key": key, "operator": "Exists"}


def test_the_agent_runs_on_nodes_with_any_of_the_labels_that_people_have(chart: Chart) -> None:
    """GPU Feature Discovery's; Node Feature Discovery's, by vendor as in NVIDIA's chart, and by class and vendor."""
    assert agent_terms(chart, {}) == [
        {"matchExpressions": [expression]}
        for expression in (
            has("nvidia-device-enable", "enable"),
            has("nvidia.com/gpu.present", "true"),
            has("feature.node.kubernetes.io/pci-10de.present", "true"),
            has("feature.node.kubernetes.io/pci-0300_10de.present", "true"),
            has("feature.node.kubernetes.io/pci-0302_10de.present", "true"),
        )
    ]
    assert "nodeSelector" not in chart.render({}).agent


def test_labels_of_the_operator_replace_these_and_stand_beside_his_affinity(chart: Chart) -> None:
    theirs = {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [theirs, field]}}
    labels = [has("pool", "gpu"), has("team")]
    assert agent_terms(
        chart, {"gpuNodes": ["pool=gpu,team", "a=b"], "agent": {"affinity": {"nodeAffinity": wanted}}}
    ) == [
        {"matchExpressions": [*theirs["matchExpressions"], *labels]},
        {"matchExpressions": [*theirs["matchExpressions"], has("a", "b")]},
        {"matchExpressions": labels, **field},
        {"matchExpressions": [has("a", "b")], **field},
    ]
    assert "affinity" not in chart.render({"gpuNodes": []}).agent
