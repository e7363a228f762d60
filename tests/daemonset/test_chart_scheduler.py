"""What the chart renders for the scheduler: flags that exist, kube-scheduler beside the extender, who asks whom how."""

import base64
import datetime as dt
import re
import socket
import subprocess
from pathlib import Path

import pytest

from deviceplugin.cluster.certificates.issuer import CA_LIFE, CERTIFICATE_LIFE
from deviceplugin.cluster.certificates.keypair import make_certificate, read_ca
from deviceplugin.config.scheduler import Election
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Chart, Object, Rendered, settings
from tests.daemonset.value_sets import VALUE_SETS

SETTING_FLAGS = (
    "defaults",
    "scheduler alone",
    "cert-manager",
    "a Secret of the operator",
    "a kube-scheduler elsewhere",
    "the nodes' network",
    "HAMi by other names",
    "everything else",
)


def test_the_extender_gets_the_values_by_flags_that_exist(chart: Chart, subtests: pytest.Subtests) -> None:
    rendered = chart.render_all(VALUE_SETS)
    for name in SETTING_FLAGS:
        with subtests.test(name):
            check_flags(rendered[name], VALUE_SETS[name])


def check_flags(rendered: Rendered, values: Object) -> None:
    parsed, chosen = settings(rendered), values.get("scheduler", {})
    assert parsed.serving.port == chosen.get("port", 8443)
    assert parsed.placement.node_policy.value == chosen.get("nodePolicy", "fragmentation")
    assert parsed.placement.node_choice.value == chosen.get("nodeChoice", "extender")
    assert parsed.cluster.resource_domain == values.get("resourceDomain", "tencent.com")
    assert parsed.serving.grafana_url == values.get("monitoring", {}).get("grafanaUrl", "")
    labels = values.get("gpuNodes", ["nvidia-device-enable=enable"])
    has_agent = labels and values.get("agent", {}).get("enabled", True)
    assert parsed.serving.node_label == (labels[0] if has_agent else "")
    hami = values.get("hami", {})
    assert parsed.webhook.hami.scope.value == hami.get("translate", "marked")
    assert parsed.webhook.hami.resources.count == hami.get("resources", {}).get("count", "nvidia.com/gpu")
    assert parsed.leader.election.value == chosen.get("leaderElection", "kube-scheduler")
    ours = values.get("webhook", {}).get("certificates", {}).get("from", "self") == "self"
    assert (parsed.certificates.cert_file is None) is ours
    patches = values.get("webhook", {}).get("certificates", {}).get("patch", False)
    assert parsed.webhook.configuration == ("vcuda-scheduler" if ours and patches else "")


PATCHES: Object = {"webhook": {"certificates": {"patch": True}}}


def test_the_chart_makes_a_ca_that_the_scheduler_can_use_and_tells_the_api_server(defaults: Rendered) -> None:
    made = defaults.get("Secret", settings(defaults).certificates.secret)
    ca = read_ca(*(base64.b64decode(made["data"].pop(key)) for key in ("ca.crt", "ca.key")))
    assert made["data"] == {}
    assert base64.b64decode(defaults.webhook["clientConfig"]["caBundle"]) == ca.chain
    now = dt.datetime.now(dt.UTC)
    assert round((ca.certificate.not_valid_after_utc - now) / CA_LIFE, 2) == 1
    shown = make_certificate(["vcuda-scheduler"], ca, now, CERTIFICATE_LIFE).certificate
    shown.verify_directly_issued_by(ca.certificate)
    assert "annotations" not in made["metadata"], "helm uninstall removes it"
    assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "vcuda-scheduler", "else it is never repaired"


def test_no_right_on_webhook_configurations_is_given_but_where_it_is_asked_for(chart: Chart) -> None:
    """Security B-12: who may change one is sent whatever is written in the cluster, and may change it."""
    for name, rendered in chart.render_all(VALUE_SETS).items():
        if "patch" in str(VALUE_SETS[name]):
            continue
        roles = [each for each in rendered.installed if each["kind"] in ("Role", "ClusterRole")]
        rules = [rule for role in roles for rule in role["rules"]]
        assert [rule for rule in rules if "admissionregistration.k8s.io" in rule.get("apiGroups", ())] == [], name
    patching = chart.render(PATCHES)
    rules = patching.get("ClusterRole", "vcuda-scheduler")["rules"]
    (rule,) = [rule for rule in rules if "admissionregistration.k8s.io" in rule.get("apiGroups", ())]
    assert (rule["resourceNames"], rule["verbs"]) == (["vcuda-scheduler"], ["get", "patch"])
    assert settings(patching).webhook.configuration == "vcuda-scheduler"
    assert "caBundle" not in patching.webhook["clientConfig"], "Helm would write over the scheduler's"
    assert patching.names("Secret") == {"vcuda-agent-names"}


def test_every_right_of_the_scheduler_that_a_name_cannot_bound_has_its_policy(chart: Chart) -> None:
    found = chart.render({"agent": {"dra": {"enabled": True}}, "webhook": {"translateToClaims": True}})
    policies = {
        each["metadata"]["name"]: each["spec"]["matchConstraints"]
        for each in found
        if "Policy" in each["kind"] and "matchConstraints" in each["spec"]
    }
    held = {
        (operation, resource)
        for name, constraints in policies.items()
        if name.startswith("vcuda-scheduler-")
        for rule in constraints["resourceRules"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }
    verbs = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
    writes = {
        (verbs[verb], resource)
        for kind in ("Role", "ClusterRole")
        for rule in found.get(kind, "vcuda-scheduler")["rules"]
        if "resourceNames" not in rule
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in verbs
    }
    assert writes - held == {
        ("CREATE", "pods/binding"),
        ("CREATE", "events"),
        ("CREATE", "leases"),
        ("CREATE", "tokenreviews"),
        ("CREATE", "subjectaccessreviews"),
    }, "what docs/threat-model.md says of them"


def test_the_scheduler_looks_at_claims_where_agents_offer_gpus_to_them_and_nowhere_else(
    chart: Chart, defaults: Rendered
) -> None:
    def rights(rendered: Rendered) -> list[Object]:
        rules = rendered.get("ClusterRole", "vcuda-scheduler")["rules"]
        return [each for each in rules if "resourceslices" in each["resources"]]

    with_claims = chart.render(VALUE_SETS["claims"])
    assert settings(with_claims).cluster.claims
    (rule,) = rights(with_claims)
    assert (rule["apiGroups"], sorted(rule["resources"])) == (["resource.k8s.io"], ["resourceclaims", "resourceslices"])
    assert set(rule["verbs"]) == {"get", "list", "watch"}
    assert (settings(defaults).cluster.claims, rights(defaults)) == (False, [])
    elsewhere = chart.render({"agent": {"enabled": False, "dra": {"enabled": True}}})
    assert settings(elsewhere).cluster.claims, "the agents may be another release's"
    assert "agent.dra.enabled" in chart.refusal({"scheduler": {"flags": {"dra": True}}})


def _mounted(rendered: Rendered, container: Object, path: Path) -> tuple[str, list[str]]:
    """Which Secret or ConfigMap a file of a container comes from, and the keys that lie there."""
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (volume,) = [each for each in rendered.scheduler["volumes"] if each["name"] == mounts[str(path.parent)]]
    source = volume.get("secret") or volume["configMap"]
    return source.get("secretName") or source["name"], [item["key"] for item in source["items"]]


def test_kube_scheduler_asks_the_extender_on_the_loopback_of_their_pod_and_needs_no_certificate(
    chart: Chart, subtests: pytest.Subtests
) -> None:
    sets = chart.render_all(VALUE_SETS)
    for name in ("defaults", "cert-manager", "a Secret of the operator", "everything else"):
        with subtests.test(name):
            rendered = sets[name]
            parsed = settings(rendered)
            (extender,) = rendered.configuration["extenders"]
            assert parsed.serving.loopback_port not in (0, parsed.serving.port)
            assert extender["urlPrefix"] == f"http://127.0.0.1:{parsed.serving.loopback_port}"
            assert (extender["enableHTTPS"], "tlsConfig" in extender) == (False, False)
            assert parsed.callers.ca_file is None
            (container,) = rendered.scheduler["containers"]
            assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/etc/vcuda/scheduler"]
            assert "hostNetwork" not in rendered.scheduler


@pytest.mark.parametrize("on_the_node", [True, False])
def test_with_client_certificates_kube_scheduler_has_one_and_knows_the_extenders_ca(
    chart: Chart, on_the_node: bool
) -> None:
    values = {"scheduler": {**VALUE_SETS["the nodes' network"]["scheduler"], "hostNetwork": on_the_node}}
    rendered = chart.render(values)
    parsed = settings(rendered)
    (extender,) = rendered.configuration["extenders"]
    (container,) = rendered.scheduler["containers"]
    assert parsed.serving.loopback_port == 0, "nobody can show a certificate there"
    assert extender["urlPrefix"] == f"https://127.0.0.1:{parsed.serving.port}"
    assert extender["enableHTTPS"] is True
    tls = extender["tlsConfig"]
    assert tls["serverName"] == f"{parsed.certificates.service}.{NAMESPACE}.svc"
    assert _mounted(rendered, container, Path(tls["caFile"])) == (parsed.certificates.secret, ["ca.crt"]), "not the key"
    for file in ("certFile", "keyFile"):
        name, keys = _mounted(rendered, container, Path(tls[file]))
        assert (name, Path(tls[file]).name in keys) == ("kube-scheduler-client", True)
    assert parsed.callers.ca_file is not None
    assert _mounted(rendered, rendered.extender, parsed.callers.ca_file) == ("callers", [parsed.callers.ca_file.name])


def test_on_the_nodes_network_no_two_replicas_stand_on_one_node_and_the_host_name_decides(
    chart: Chart, defaults: Rendered
) -> None:
    rendered = chart.render(VALUE_SETS["the nodes' network"])
    pod = rendered.scheduler
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    rolling = rendered.get("Deployment", "vcuda-scheduler")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}, "a new pod finds its ports taken until the old one is gone"
    assert settings(rendered).cluster.identity == socket.gethostname(), "as kube-scheduler calls itself in its Lease"
    assert settings(defaults).cluster.identity == "vcuda-scheduler-0"
    (container,) = pod["containers"]
    assert "--secure-port=10260" in container["command"]
    assert [each["containerPort"] for each in container["ports"]] == [10260]


def test_with_a_kube_scheduler_elsewhere_the_chart_installs_none_and_none_of_its_rights(
    chart: Chart, defaults: Rendered
) -> None:
    rendered = chart.render(VALUE_SETS["a kube-scheduler elsewhere"])
    parsed = settings(rendered)
    assert [each["name"] for each in rendered.scheduler["containers"]] == ["extender"]
    assert "initContainers" not in rendered.scheduler
    assert "restartPolicy" not in rendered.extender
    assert (parsed.leader.election, parsed.serving.loopback_port) == (Election.OWN, 0)
    assert parsed.callers.names == ("system:kube-scheduler", "scheduler.example.org")
    assert parsed.callers.ca_file is not None
    assert _mounted(rendered, rendered.extender, parsed.callers.ca_file) == ("callers", ["authority.crt"])
    assert not rendered.names("ConfigMap")
    assert rendered.installed.names("ClusterRoleBinding") == {"vcuda-agent", "vcuda-scheduler", "vcuda-view"}
    assert rendered.installed.names("RoleBinding") == {"vcuda-scheduler"}
    assert _verbs_of_the_lease(rendered) == {"get", "patch"}
    assert _verbs_of_the_lease(defaults) == {"get", "update"}


def test_an_election_that_is_left_out_takes_no_kube_scheduler_away(chart: Chart) -> None:
    rendered = chart.render({"scheduler": {"leaderElection": None}})
    assert [each["name"] for each in rendered.scheduler["containers"]] == ["kube-scheduler"]
    assert _verbs_of_the_lease(rendered) == {"get", "update"}


def _verbs_of_the_lease(rendered: Rendered) -> set[str]:
    rules = rendered.get("Role", "vcuda-scheduler")["rules"]
    (named,) = [rule for rule in rules if rule["resources"] == ["leases"] and "resourceNames" in rule]
    (free,) = [rule for rule in rules if rule["resources"] == ["leases"] and "resourceNames" not in rule]
    assert (named["resourceNames"], free["verbs"]) == ([settings(rendered).leader.lease], ["create"])
    return set(named["verbs"])


def test_the_network_policy_names_peers_or_restricts_nothing(chart: Chart, defaults: Rendered) -> None:
    assert not defaults.names("NetworkPolicy")
    rendered = chart.render(VALUE_SETS["a kube-scheduler elsewhere"])
    policy = rendered.get("NetworkPolicy", "vcuda-scheduler")["spec"]
    labels = rendered.get("Deployment", "vcuda-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"][1:] == VALUE_SETS["a kube-scheduler elsewhere"]["scheduler"]["networkPolicy"]["from"]
    assert [each["port"] for each in rule["ports"]] == [each["name"] for each in rendered.extender["ports"]]


def test_two_ports_of_one_pod_that_are_the_same_are_refused(chart: Chart) -> None:
    same = ({"loopbackPort": 8443}, {"kubeScheduler": {"port": 8444}}, {"port": 10259})
    said = [chart.refusal({"scheduler": ports}) for ports in same]
    assert [each for each in said if "give three different ones" not in each] == []


def test_kube_scheduler_calls_the_extender_for_everything_and_never_ignores_it(defaults: Rendered) -> None:
    (extender,) = defaults.configuration["extenders"]
    verbs = {verb: extender[verb] for verb in extender if verb.endswith("Verb")}
    assert verbs == {
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
    }
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert extender["managedResources"] == [
        {"name": "tencent.com/vcuda-core", "ignoredByScheduler": False},
        {"name": "tencent.com/vcuda-memory", "ignoredByScheduler": False},
    ]


def test_pods_name_the_profile_and_the_extender_follows_its_lease(defaults: Rendered) -> None:
    parsed = settings(defaults)
    (profile,) = defaults.configuration["profiles"]
    assert profile == {"schedulerName": parsed.webhook.scheduler_name}
    election = defaults.configuration["leaderElection"]
    assert election["resourceName"] == parsed.leader.lease
    assert (election["leaderElect"], election["resourceNamespace"]) == (True, NAMESPACE)


VERSIONS = {
    "v1.34.1": "v1.34.1",
    "v1.34.1+k3s1": "v1.34.1",
    "v1.33.4-eks-abc": "v1.33.4",
    "v1.35.0-gke.100": "v1.35.0",
    "v1.34.2-aliyun.1": "v1.34.2",
    "1.36": "v1.36.0",  # as Argo CD renders (argo-cd#26330)
    "v1.32": "v1.32.0",
}
"""Of a cluster, and of its kube-scheduler."""


def test_kube_scheduler_is_of_the_clusters_version(chart: Chart) -> None:
    images = {each: chart.render({}, f"--kube-version={each}").scheduler["containers"][0]["image"] for each in VERSIONS}
    assert images == {each: f"registry.k8s.io/kube-scheduler:{tag}" for each, tag in VERSIONS.items()}


def test_a_version_without_patch_number_decides_as_its_first_release(chart: Chart) -> None:
    assert "this one is v1.31" in chart.refusal(version="1.31")
    assert "this cluster has v1.35" in chart.refusal({"agent": {"dra": {"enabled": True}}}, version="1.35")
    assert "chart requires kubeVersion: >=1.30.0-0" in chart.refusal(version="1.29")


def test_the_scheduler_has_no_privilege_whatsoever(chart: Chart, subtests: pytest.Subtests) -> None:
    sets = chart.render_all(VALUE_SETS)
    without = [name for name, rendered in sets.items() if not rendered.names("Deployment")]
    assert without == ["agent alone"]
    for name in sets.keys() - set(without):
        with subtests.test(name):
            pod = sets[name].scheduler
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert not {"hostPID", "hostIPC"} & set(pod)
            assert pod.get("hostNetwork", False) is VALUE_SETS[name].get("scheduler", {}).get("hostNetwork", False)
            assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                context = container["securityContext"]
                assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
                assert context["readOnlyRootFilesystem"] is True
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert container["resources"]["requests"]


def test_kube_scheduler_starts_after_the_extender_and_does_not_make_the_webhook_wait(defaults: Rendered) -> None:
    (extender,) = defaults.scheduler["initContainers"]
    (kube_scheduler,) = defaults.scheduler["containers"]
    assert extender["restartPolicy"] == "Always"
    assert extender["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "https", "scheme": "HTTPS"}
    assert extender["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert extender["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert "readinessProbe" not in kube_scheduler
    assert kube_scheduler["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "scheduler", "scheme": "HTTPS"}


def test_a_change_of_the_configuration_restarts_kube_scheduler(chart: Chart) -> None:
    def mark(values: Object) -> str:
        rendered = chart.render(values)
        return str(rendered.get("Deployment", "vcuda-scheduler")["spec"]["template"]["metadata"]["annotations"])

    assert mark({}) == mark({}) != mark({"scheduler": {"httpTimeout": "5s"}})


def test_zones_are_spread_over_where_they_are_named(chart: Chart, defaults: Rendered) -> None:
    assert "topologySpreadConstraints" not in defaults.scheduler
    rendered = chart.render(VALUE_SETS["everything else"])
    (zones,) = rendered.scheduler["topologySpreadConstraints"]
    assert zones.pop("labelSelector") == rendered.get("Deployment", "vcuda-scheduler")["spec"]["selector"]
    assert [zones] == VALUE_SETS["everything else"]["scheduler"]["topologySpreadConstraints"]


def test_without_a_cluster_the_newest_kube_scheduler_that_helm_knows_is_taken(helm: str, chart: Chart) -> None:
    deployment = "--show-only=templates/scheduler/deployment.yaml"
    command = [helm, "template", "vcuda", str(manifests.CHART), deployment]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert re.search(r"image: registry[.]k8s[.]io/kube-scheduler:v1[.][0-9]+[.][0-9]+\n", done.stdout)
    named = chart.render({"scheduler": {"kubeScheduler": {"image": {"tag": "v1.35.0"}}}})
    assert named.scheduler["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.35.0"


def test_replicas_are_spread_and_not_evicted_together(defaults: Rendered, chart: Chart) -> None:
    deployment = defaults.get("Deployment", "vcuda-scheduler")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    (spread,) = defaults.scheduler["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    budget = defaults.get("PodDisruptionBudget", "vcuda-scheduler")["spec"]
    assert (deployment["replicas"], budget["maxUnavailable"]) == (2, 1)
    assert budget["selector"] == deployment["selector"]
    alone = chart.render({"scheduler": {"replicas": 1}})
    assert not alone.names("PodDisruptionBudget"), "with one replica it would stop every drain"


def test_the_service_leads_to_the_port_of_the_extender(defaults: Rendered) -> None:
    service = defaults.get("Service", "vcuda-scheduler")["spec"]
    (container,) = defaults.scheduler["initContainers"]
    ports = [port["targetPort"] for port in service["ports"] if port["name"] == "https"]
    assert ports == [port["name"] for port in container["ports"]]
    asked = defaults.webhook["clientConfig"]["service"]
    assert asked == {"namespace": NAMESPACE, "name": "vcuda-scheduler", "path": "/webhook", "port": 443}
