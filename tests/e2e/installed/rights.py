"""What the chart's own roles grant, and which of it a newcomer's day does not use.

In: the release. Out: accounts, verbs and resources. Not here: what was asked (`audit`).
"""

import yaml

from tests.e2e.installed.release import Release

_OF_USERS = ("vcuda-explain", "vcuda-tenant")


def granted(release: Release) -> set[tuple[str, str, str]]:
    """(account, verb, resource) of the chart's own roles."""
    rendered = release.say("get", "manifest", "vcuda")
    return {
        (document["metadata"]["name"], verb, resource)
        for document in yaml.safe_load_all(rendered)
        if document and document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"] not in _OF_USERS
        for rule in document["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


ELSEWHERE = {
    ("vcuda-agent", "get", "pods"): "whether a pod that is not in the watch exists; tests/kube",
    ("vcuda-agent", "delete", "pods"): "a pod that kubelet refused; tests/e2e/test_agent.py",
    ("vcuda-agent", "get", "nodes/pods"): "asked of kubelet, which asks the API server under its own name",
    ("vcuda-agent", "patch", "events"): "an event that comes again; tests/kube",
    ("vcuda-scheduler", "get", "pods"): "a bind whose answer was lost; tests/cluster/extender/bind/test_bind.py",
    ("vcuda-scheduler", "patch", "nodes"): "capacity that becomes free while pods wait; tests/e2e/test_scheduling.py",
    ("vcuda-scheduler", "create", "secrets"): "a Secret that somebody deleted; tests/cluster/certificates",
    ("vcuda-scheduler", "patch", "secrets"): "a damaged Secret; tests/cluster/certificates",
}
