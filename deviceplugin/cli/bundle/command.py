"""The command line of `vcuda bundle`.

In: flags. Out: a file, its name on standard output, and on standard error what could not be read. Status 0 also if
parts are missing: the index says which, and why.

A bundle is gathered part by part; a part that cannot be read is named in the index and stops nothing.

In: the cluster as `vcuda doctor` sees it. Out: members of an `Archive` with the same names every time. Bounds: 5,000
lines or 4 MiB of one log, of the last day; the logs of 20 agents, those that are not ready first; 50 pods that wait.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import msgspec

from deviceplugin import __version__
from deviceplugin.cli.bundle.archive import EVENT, Archive, Form, Forms, created, kept
from deviceplugin.cli.command import OperatorCommand, node_name
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.doctor.cluster import (
    AGENT,
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    OWN_PODS,
    SCHEDULER,
    ClusterFacts,
    OwnPod,
)
from deviceplugin.cli.doctor.control import CHECKS
from deviceplugin.cli.doctor.findings import CheckOutcome, document, examine
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.cli.terminal import say
from deviceplugin.errors import KubeError, ParseError, VcudaError, one_line
from deviceplugin.kube.cluster_client import WEBHOOKS
from deviceplugin.kube.collection import ObjectKind, ObjectRef
from deviceplugin.kube.events import EVENTS
from deviceplugin.kube.leader_election import LEASES
from deviceplugin.model.cluster_view import MOST_IN_DETAIL, MOST_ROWS

Json = dict[str, Any]
_LOG = {"tailLines": "5000", "limitBytes": str(4 << 20), "sinceSeconds": "86400", "timestamps": "true"}
_MOST_AGENTS = 20
_MOST_WAITING = 50
_MOST_PAGES = 200
_CONTAINERS = ("extender", "kube-scheduler", "agent", "device-nodes", "doctor")
_NO_QUERY: Mapping[str, str] = MappingProxyType({})


class Collector:
    """`nodes`: whose agents' logs are wanted in any case."""

    def __init__(self, archive: Archive, facts: ClusterFacts, nodes: Sequence[str]) -> None:
        self._archive = archive
        self._facts = facts
        self._nodes = frozenset(nodes)
        self._waiting: list[tuple[str, str, str]] = []
        self._forms = Forms("")
        self._is_away = False

    async def collect(self, said: Callable[[str], None]) -> None:
        """`said` hears of each part before it is read."""
        self._forms = Forms((await self._facts.names()).domain)
        parts: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("doctor.json", self._doctor),
            ("versions.json", self._versions),
            *(
                (f"view/{name}", partial(self._pages, name, most))
                for name, most in (("nodes", MOST_IN_DETAIL), ("pods", MOST_ROWS))
            ),
            ("view/cluster.json", self._cluster_view),
            *self._objects(),
            ("nodes.jsonl", self._all_nodes),
            ("pods.jsonl", self._gpu_pods),
            ("events/of-the-release.jsonl", self._events),
            ("events/of-pending-pods.jsonl", self._waiting_events),
            ("own pods", self._own_pods),
        )
        for name, part in parts:
            said(name)
            if self._is_away:
                self._archive.unread(name, KubeError("the API server does not answer"))
            else:
                await self._tried(name, part)

    async def _tried(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except VcudaError as error:
            self._archive.unread(name, error)

    async def _doctor(self) -> None:
        """The first check is whether the API server answers: without it each part would wait in vain."""
        found = [each async for each in examine(CHECKS, self._facts)]
        self._archive.document("doctor.json", document(found))
        self._is_away = found[0].outcome is CheckOutcome.FAILED

    async def _versions(self) -> None:
        found = {"command": __version__, "kubernetes": await self._facts.api.version()}

        async def scheduler() -> None:
            found["scheduler"] = (await self._facts.view()).scheduler_version

        async def agents() -> None:
            known, unknown = await self._facts.agent_versions()
            found["agents"] = ", ".join(sorted(known))
            if unknown:
                raise KubeError(unknown)

        await self._tried("versions.json: scheduler", scheduler)
        await self._tried("versions.json: agents", agents)
        self._archive.document("versions.json", found)

    async def _cluster_view(self) -> None:
        self._archive.document("view/cluster.json", msgspec.to_builtins(await self._facts.view()))

    async def _pages(self, what: str, most: int) -> None:
        more, query = "", {"limit": str(most)} | ({"gpus": "1"} if what == "nodes" else {})
        for number in range(1, _MOST_PAGES + 1):
            asked = query | ({"more": more} if more else {})
            found = await self._facts.scheduler_client.read(f"/view/{what}", dict[str, Any], asked)
            self._archive.document(f"view/{what}-{number:03}.json", found)
            more = str(found.get("more") or "")
            if not more:
                return

    def _objects(self) -> tuple[tuple[str, Callable[[], Awaitable[None]]], ...]:
        own = self._facts.namespace
        wanted: tuple[tuple[str, ObjectKind[Any, Any], ObjectRef, Form], ...] = (
            ("objects/daemonset.json", DAEMON_SETS, ObjectRef(own, AGENT), self._forms.controller),
            ("objects/deployment.json", DEPLOYMENTS, ObjectRef(own, SCHEDULER), self._forms.controller),
            ("objects/lease.json", LEASES, ObjectRef(own, SCHEDULER), self._forms.lease),
            ("objects/webhook.json", WEBHOOKS, ObjectRef("", SCHEDULER), self._forms.webhooks),
        )
        return tuple((name, partial(self._object, name, kind, ref, form)) for name, kind, ref, form in wanted)

    async def _object(self, member: str, kind: ObjectKind[Any, Any], ref: ObjectRef, form: Form) -> None:
        found = await self._facts.api.get(kind.as_written(), ref, what=f"get {kind.plural}")
        self._archive.document(member, kept(found, form))

    async def _all_nodes(self) -> None:
        with self._archive.documents("nodes.jsonl") as write:
            async for item in self._facts.api.each(NODES.as_written(), what="nodes"):
                with self._one_of("nodes.jsonl", item):
                    write(kept(item, self._forms.node))

    async def _gpu_pods(self) -> None:
        with self._archive.documents("pods.jsonl") as write:
            async for item in self._facts.api.each(OWN_PODS.as_written(), what="pods"):
                with self._one_of("pods.jsonl", item):
                    if _asks(item, f"{self._forms.domain}/vcuda-"):
                        self._note_waiting(item)
                        write(kept(item, self._forms.tenant_pod))

    def _note_waiting(self, item: Json) -> None:
        meta, spec = item.get("metadata") or {}, item.get("spec") or {}
        if not spec.get("nodeName") and len(self._waiting) < _MOST_WAITING:
            self._waiting.append((meta.get("namespace", ""), meta.get("name", ""), meta.get("uid", "")))

    @contextmanager
    def _one_of(self, part: str, item: Json) -> Iterator[None]:
        """An object of a form that nobody thought of is left out alone."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            meta = item.get("metadata")
            name = str(meta.get("name")) if isinstance(meta, dict) else "an object"
            self._archive.unread(
                f"{part}: {one_line(name)}", ParseError(f"it is of another form: {one_line(str(error))}")
            )

    async def _events(self) -> None:
        with self._archive.documents("events/of-the-release.jsonl") as write:
            await self._events_of(self._facts.namespace, {}, write)

    async def _waiting_events(self) -> None:
        part = "events/of-pending-pods.jsonl"
        with self._archive.documents(part) as write:
            for namespace, name, uid in self._waiting:
                query = {"fieldSelector": f"involvedObject.uid={uid}"}
                await self._tried(f"events of {namespace}/{name}", partial(self._events_of, namespace, query, write))

    async def _events_of(self, namespace: str, query: Mapping[str, str], write: Callable[[object], None]) -> None:
        async for item in self._facts.api.each(EVENTS.as_written(), namespace, what="events", query=query):
            with self._one_of("events", item):
                write(kept(item, EVENT))

    async def _own_pods(self) -> None:
        schedulers = await self._facts.scheduler_pods()
        agents = sorted(
            await self._facts.agent_pods(),
            key=lambda pod: (pod.spec.node_name not in self._nodes, pod.is_ready, pod.metadata.name),
        )
        chosen = agents[: max(_MOST_AGENTS, len(self._nodes))]
        for pod in (*schedulers, *chosen):
            await self._own_pod(pod)
        left = [pod.metadata.name for pod in agents[len(chosen) :]]
        if left:
            sentence = f"logs of the first {len(chosen)} agents are here; name others by --node"
            self._archive.unread(f"logs of {len(left)} agents", ParseError(sentence))

    async def _own_pod(self, pod: OwnPod) -> None:
        name, port = pod.metadata.name, pod.port("http")
        ref = ObjectRef(self._facts.namespace, name)
        manifest, metrics = f"pods/{name}/pod.json", f"pods/{name}/metrics.txt"
        await self._tried(manifest, partial(self._object, manifest, OWN_PODS, ref, self._forms.own_pod))
        if pod.is_ready:
            proxied = f"{name}:{port}" if port else f"https:{name}:{self._facts.connection.port}"
            at = ObjectRef(ref.namespace, proxied)
            await self._tried(metrics, partial(self._text, metrics, at, "proxy", "metrics", what="get pods/proxy"))
        for container, restarts in pod.restarts.items():
            if container in _CONTAINERS:
                await self._log(ref, container, previous=False)
                if restarts:
                    await self._log(ref, container, previous=True)

    async def _log(self, pod: ObjectRef, container: str, *, previous: bool) -> None:
        member = f"pods/{pod.name}/{container}{'.previous' if previous else ''}.log"
        query = {**_LOG, "container": container} | ({"previous": "true"} if previous else {})
        await self._tried(member, partial(self._text, member, pod, "log", what="get pods/log", query=query))

    async def _text(
        self, member: str, pod: ObjectRef, *part: str, what: str, query: Mapping[str, str] = _NO_QUERY
    ) -> None:
        text = await self._facts.api.text(OWN_PODS, pod, *part, what=what, query=query)
        with self._archive.lines(member) as write:
            write(text)


def _asks(pod: Json, prefix: str) -> bool:
    spec = pod.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    amounts = [(each.get("resources") or {}).get(kind) or {} for each in containers for kind in ("limits", "requests")]
    named = (*(name for each in amounts for name in each), *((pod.get("metadata") or {}).get("annotations") or {}))
    return any(name.startswith(prefix) for name in named)


_EXAMPLES = (
    ("Write vcuda-bundle-TIME.tar.gz into this directory.", "bundle"),
    ("With the log of the agent of one node in any case.", "bundle --node node-a --file /tmp/case-17.tar.gz"),
)


@click.command("bundle", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("-f", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write it.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Include the agent of this node; may be repeated.")
@connected
def bundle(path: Path | None, nodes: tuple[str, ...], connection: Connection) -> None:
    """Gather what support needs in one archive, without secrets.

    It has doctor's findings, versions, logs, metrics, events, and what is known of nodes, GPU pods and vcuda's own
    objects. It has names of nodes, namespaces and pods; no Secret or ConfigMap is read, and values of environment
    variables, foreign arguments and annotations are removed. index.json says what could not be read.
    """
    connection = connection.through_api_server("bundle")
    file = path or Path(time.strftime("vcuda-bundle-%Y%m%d-%H%M%S.tar.gz"))
    named = [node_name(each) for each in nodes]
    missing = asked(connection, lambda client: _gather(client, file, named))
    if missing:
        click.echo(f"vcuda: {missing} parts could not be read; index.json in the archive says why", err=True)
    say(str(file))


async def _gather(client: SchedulerClient, file: Path, nodes: list[str]) -> int:
    with created(file) as archive:
        await Collector(archive, ClusterFacts(client), nodes).collect(_progress)
        archive.close(made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), version=__version__)
        return archive.missing


def _progress(part: str) -> None:
    """On a terminal; it may take minutes."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"vcuda: reading {part}", err=True)
