"""A real node whose agent offers GPUs to claims, with the chart's classes and policies in the API server.

In: the cluster, flags of the agent. Out: a `Scene` that makes pods with claims and looks at them from every side. Not
here: what must be true. Invariant: leaving the context leaves no pod, claim, class, policy or agent.
"""

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import yaml

from sandbox.cluster import claims, pods
from sandbox.cluster.claims import CLAIMS, SHARES, TEMPLATES, WHOLE_GPUS
from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import Identity
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from scripts import manifests
from tests.e2e.node.agent import Agent, make_agent
from tests.e2e.node.view import SHOW_AND_STAY, View, parse_view
from tests.e2e.scheduling.world import profile_of

SHARE = {"cores": "20", "memory": "2Gi"}


@dataclass(frozen=True, slots=True)
class Scene:
    """The node and its agent."""

    cluster: Cluster
    agent: Agent

    @property
    def admin(self) -> Client:
        return self.cluster.admin

    def slices(self) -> list[JsonObject]:
        return claims.slices(self.admin)

    def devices(self) -> list[JsonObject]:
        return [each for one in self.slices() for each in one["spec"]["devices"]]

    def offers_whole(self, minors: Collection[int]) -> bool:
        """A GPU that a pod of an earlier scene has whole is not offered until kubelet forgets it."""
        cores = {each["name"]: each["capacity"]["cores"]["value"] for each in self.devices()}
        return cores == {f"gpu-{minor}": "100" for minor in minors}

    def held(self) -> dict[int, tuple[int, int]]:
        """Cores and blocks by minor, where something is held."""
        usage = self.agent.usage()
        return {gpu.minor: (gpu.cores_allocated, gpu.blocks_allocated) for gpu in usage.gpus if gpu.cores_allocated}

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, evidence=self._evidence)

    def _evidence(self) -> str:
        states = [str(each) for each in pods.states(self.admin).values()]
        return f"{states}\n{self.held()}\n{self.agent.process.log_tail()}\n{self.cluster.kubelet.process.log_tail()}"

    def claim_spec(
        self, capacity: Mapping[str, str] | None = SHARE, *, count: int = 1, requests: Sequence[str] = ("gpu",)
    ) -> JsonObject:
        exactly: JsonObject = {"deviceClassName": SHARES if capacity else WHOLE_GPUS, "count": count}
        if capacity:
            exactly["capacity"] = {"requests": dict(capacity)}
        return {"devices": {"requests": [{"name": name, "exactly": exactly} for name in requests]}}

    def template(self, name: str, spec: JsonObject) -> None:
        self.admin.post(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}})

    def claim(self, name: str, spec: JsonObject) -> str:
        return str(self.admin.post(CLAIMS, {"metadata": {"name": name}, "spec": spec})["metadata"]["uid"])

    def create(self, *names: str, capacity: Mapping[str, str] | None = SHARE, count: int = 1) -> None:
        """Each pod with a claim of its own from a template of its own."""
        for name in names:
            self.template(name, self.claim_spec(capacity, count=count))
            pods.create(self.admin, pod_with(name, resourceClaimTemplateName=name))

    def run(self, *names: str, capacity: Mapping[str, str] | None = SHARE, count: int = 1) -> None:
        """One after the other, so that kube-scheduler fills the GPUs in their order.

        It counts a claim twice between its own write of it and the end of the pod's binding (1.36: `claimTracker`
        adds the claims in flight to those of its cache), and may then go on to the next GPU.
        """
        for name in names:
            self.create(name, capacity=capacity, count=count)
            pods.wait_running(self.admin, [name])

    def view(self, pod: str, container: str = "main") -> View:
        return wait_until(
            lambda: parse_view(pods.log(self.admin, pod, container)),
            f"{pod}/{container} says what it sees",
            evidence=self._evidence,
        )

    def delete_all(self) -> None:
        pods.delete_all(self.admin)
        self.until(lambda: not pods.states(self.admin), "all pods are gone")
        claims.delete_all(self.admin)

    def wait_all_released(self) -> None:
        def ended() -> bool:
            return not self.agent.usage().containers and not self.agent.grant_folders()

        self.until(ended, "all grants have ended")


def pod_with(name: str, *, script: str = SHOW_AND_STAY, request: str = "", **source: str) -> JsonObject:
    """One container with one claim; `source` is resourceClaimName or resourceClaimTemplateName."""
    container = pods.container("main", script)
    container["resources"] = {"claims": [{"name": "gpu"} | ({"request": request} if request else {})]}
    return pods.pod(name, [container], resourceClaims=[{"name": "gpu", **source}])


def rendered(*values: str) -> dict[str, str]:
    flags = [f"--set={each}" for each in ("agent.dra.enabled=true", *values)]
    return manifests.by_template(manifests.render(manifests.helm(), *flags))


def classes_and_policies(admin: Client) -> AbstractContextManager[None]:
    return claims.applied(admin, filter(None, yaml.safe_load_all(rendered()["agent/claims.yaml"])))


@contextmanager
def serving_claims(cluster: Cluster, *flags: str, minors: Collection[int] = (), four: bool = False) -> Iterator[Scene]:
    """The agent with `--dra`, until the context is left; the pods of the tests are removed before it ends.

    `minors`: the GPUs that are offered to claims, all if it is empty. `four`: the node has four GPUs and not eight, for
    tests that fill them all.
    """
    role, _ = yaml.safe_load_all(rendered()["agent/clusterrole.yaml"])
    folder = cluster.layout.root / f"vcd-{time.monotonic_ns() % 10**6}"
    with ExitStack() as undo:
        undo.enter_context(classes_and_policies(cluster.admin))
        (folder / "gpus").mkdir(parents=True)
        undo.callback(shutil.rmtree, folder)
        profile = profile_of(folder, cluster.kubelet.node) if four else PROFILES / "hgx-a100.json"
        gpus = EmulatedGpus(profile, folder / "gpus" / "state")
        identity = Identity.create(cluster.admin, f"agent-{folder.name}", role["rules"])
        undo.callback(identity.remove)
        chosen = [f"--dra-gpus={','.join(map(str, minors))}"] if minors else []
        always = ("--dra", f"--cdi-dir={cluster.layout.cdi}")
        agent = make_agent(cluster, folder, gpus, identity, *always, *chosen, *flags)
        undo.callback(agent.process.stop)
        agent.start()
        scene = Scene(cluster, agent)
        whole = minors or range(4 if four else 8)
        scene.until(lambda: scene.offers_whole(whole), "GPUs are published without what earlier pods had")
        try:
            yield scene
        finally:
            scene.delete_all()
            scene.wait_all_released()
            agent.process.stop()
            claims.remove_slices(cluster.admin)
