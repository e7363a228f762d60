"""An API server's proxy before a scheduler that answers `/view/...` with rows of a test, and who may do what there.

In: a `Cluster` of rows. Out: a real HTTP server that a kubeconfig names. It pages as the contract of the view says, and
refuses what is about pods to callers without the token that only `may_create_token` gives.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import msgspec
from aiohttp import web

from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    ClusterEventKind,
    ClusterEventRow,
    ClusterEventsView,
    ClusterView,
    ContainerRow,
    GpuLive,
    GpuRow,
    HolderRow,
    NamespaceRow,
    NamespacesView,
    NodeRow,
    NodesView,
    OneNodeView,
    PodRow,
    PodStage,
    PodsView,
    ShareLive,
    ShareRow,
)
from deviceplugin.structs import replace

AT = 1_700_000_000.0
TOKEN = "eyJ.view.token"
REFUSED = "the pods are shown with a token only"
GIB = 1 << 30
SERVICE = "/api/v1/namespaces/kube-system/services/https:vcuda-scheduler:https/proxy"
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/vcuda-view/token"
_USUAL = re.compile(r"/api/v1/namespaces/([^/]+)/serviceaccounts/default/token")
_OF_NAMESPACE = re.compile(r"eyJ\.([^.]+)\.usualx*")
A100 = "NVIDIA A100-SXM4-80GB"


def node(name: str, *, gpus: int = 2, problem: str = "", **changes: Any) -> NodeRow:
    row = NodeRow(
        node=name,
        problem=problem,
        driver="550.54",
        cuda="12.4",
        models={A100: gpus},
        gpu_count=gpus,
        free_gpus=gpus - 1,
        unavailable_gpus=0,
        cores=100 * gpus,
        cores_allocated=50,
        blocks=320 * gpus,
        blocks_allocated=40,
        pods=1,
        gpus=tuple(gpu(name, at) for at in range(gpus)),
        live=GpuLive(35, 9 * GIB, 2),
        cores_used=35.0,
        cores_idle=15.0,
        gpus_measured=1,
    )
    return replace(row, **changes)


def gpu(on: str, minor: int) -> GpuRow:
    holder = HolderRow(
        "uid-llm", "research", "llm", "main", PodStage.BOUND, 50, 40, live=ShareLive(48.6, 50.0, 9 * GIB)
    )
    return GpuRow(
        uuid=f"GPU-{on}-{minor}",
        index=minor,
        minor=minor,
        model=A100,
        numa=minor % 2,
        memory_bytes=80 * GIB,
        blocks=320,
        cores_allocated=0 if minor else 50,
        blocks_allocated=0 if minor else 40,
        healthy=True,
        available=True,
        live=GpuLive(35, 9 * GIB, 2) if minor == 0 else None,
        pods=0 if minor else 1,
        holders=() if minor else (holder,),
    )


def pod(name: str, namespace: str = "research", *, node: str | None = "node-a", **changes: Any) -> PodRow:
    use = ShareLive(48.6, 50.0, 9 * GIB, 10 * GIB, 0, 12.5)
    shares = (ShareRow(f"GPU-{node}-0", 0, 50, 40, use),) if node else ()
    row = PodRow(
        uid=f"uid-{name}",
        namespace=namespace,
        pod=name,
        stage=PodStage.BOUND if node else PodStage.PENDING,
        node=node,
        created=AT - 300,
        containers=(ContainerRow("main", 50, 40, shares),),
        reason="" if node else "insufficient vcuda-core on any one GPU",
    )
    return replace(row, **changes)


def event(name: str, kind: ClusterEventKind, *, namespace: str = "research", count: int = 1) -> ClusterEventRow:
    return ClusterEventRow(kind, AT - 120, AT - 60, count, f"uid-{name}", namespace, name, "node-a", "what happened")


def answering() -> asyncio.Event:
    made = asyncio.Event()
    made.set()
    return made


@dataclass
class Cluster:
    """`may_create_token`: of account vcuda-view; `edits`: the namespaces where the caller may create any.

    `listed`: the namespaces that the caller may list; None: not allowed. `padding` makes tokens of namespaces longer.

    `agents_answer`: set; cleared, a request for live use waits. `answers`: by path, status and text in the place of
    what there is. `gone_after`: pages of one list until it has changed so much that a token is refused, once.
    """

    nodes: list[NodeRow] = field(default_factory=list)
    pods: list[PodRow] = field(default_factory=list)
    events: list[ClusterEventRow] = field(default_factory=list)
    namespaces: list[NamespaceRow] = field(default_factory=list)
    others: NamespaceRow | None = None
    may_create_token: bool = True
    edits: tuple[str, ...] = ()
    listed: tuple[str, ...] | None = None
    padding: int = 0
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    gone_after: int = 0
    explanations: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents_answer: asyncio.Event = field(default_factory=answering)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append((request.path, query))
        if "live" in query:
            await self.agents_answer.wait()
        if request.path in self.answers:
            status, text = self.answers[request.path]
            return web.Response(status=status, text=text, content_type="application/json")
        if request.path == ACCOUNT and request.method == "POST":
            return self._token(await request.json(), TOKEN if self.may_create_token else "")
        if (usual := _USUAL.fullmatch(request.path)) and request.method == "POST":
            return self._token(await request.json(), self._usual(usual[1]) if usual[1] in self.edits else "")
        if request.path.startswith(SERVICE):
            self.shown.append(request.headers.get("X-Vcuda-Token", ""))
            return self._scheduler(request.path.removeprefix(SERVICE), query, self.shown[-1].split(","))
        if request.path == "/api/v1/namespaces" and self.listed is not None:
            return web.json_response({"metadata": {}, "items": [{"metadata": {"name": each}} for each in self.listed]})
        return self._api(request.path, query)

    def _api(self, path: str, query: dict[str, str]) -> web.Response:
        return status(403, f'User "ann" cannot get path "{path}"')

    def _usual(self, namespace: str) -> str:
        return f"eyJ.{namespace}.usual{'x' * self.padding}"

    def _token(self, document: dict[str, Any], made: str) -> web.Response:
        if not made:
            return status(403, 'serviceaccounts "vcuda-view" is forbidden: User "ann" cannot create resource "token"')
        assert document["spec"] == {"audiences": ["vcuda"], "expirationSeconds": 600}
        return web.json_response({"status": {"token": made}}, status=201)

    def _scheduler(self, path: str, query: dict[str, str], tokens: list[str]) -> web.Response:
        head: dict[str, Any] = {"at": AT, "replica": "a", "leader": "a"}
        allowed = {of[1] for each in tokens if (of := _OF_NAMESPACE.fullmatch(each))}
        allowed |= {each.namespace for each in self.pods} if TOKEN in tokens else set()
        may_read = TOKEN in tokens or bool(allowed)
        if not may_read and (path not in ("/view/cluster", "/view/nodes") or "holders" in query):
            return web.json_response({"error": REFUSED, "leader": "a"}, status=403)
        if path == "/explain":
            found = self.explanations.get(query["pod"])
            return web.json_response(found or {"error": f"pod {query['pod']} not found"}, status=200 if found else 404)
        if path == "/view/cluster":
            return _encoded(_cluster(head))
        if path == "/view/nodes":
            return self._page(NodesView, head, [_as_asked(each, query) for each in self.nodes], query)
        if path == "/view/pods":
            wanted = [each for each in self.pods if fnmatch(each.namespace, query.get("namespace", "*"))]
            wanted = [each for each in wanted if each.namespace in allowed]
            wanted = [each for each in wanted if query.get("name", "") in each.pod]
            stages = {"allocated": ("reserved", "bound")}.get(query.get("stage", ""), (query.get("stage"),))
            wanted = [each for each in wanted if "stage" not in query or each.stage.value in stages]
            return self._page(PodsView, head, [_pod_as_asked(each, query) for each in wanted], query)
        if path == "/view/namespaces":
            return self._page(NamespacesView, head | {"others": self.others}, self.namespaces, query)
        if path == "/view/events":
            recent = [each for each in self.events if query.get("namespace", each.namespace) == each.namespace]
            return self._page(ClusterEventsView, head | {"since": AT, "dropped": 0}, recent, query)
        named = [each for each in self.nodes if path == f"/view/nodes/{each.node}"]
        if not named:
            return web.json_response({"error": f"no node {path.rpartition('/')[2]} with GPUs"}, status=404)
        return _encoded(OneNodeView(item=named[0], **head))

    def _page(self, kind: Any, head: dict[str, Any], rows: list[Any], query: dict[str, str]) -> web.Response:
        begin, limit = int(query.get("more", "0")), int(query.get("limit", "100"))
        most = MOST_IN_DETAIL if {"gpus", "holders"} & query.keys() else MOST_ROWS
        if limit > most:
            return web.json_response({"error": f"limit is '{limit}'; write a number from 1 to {most}"}, status=400)
        if begin and self.gone_after and begin >= self.gone_after * limit:
            self.gone_after = 0
            return web.json_response({"error": "the list has changed; begin again"}, status=410)
        more = str(begin + limit) if begin + limit < len(rows) else ""
        return _encoded(kind(items=tuple(rows[begin : begin + limit]), total=len(rows), more=more, **head))


def _encoded(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _as_asked(row: NodeRow, query: dict[str, str]) -> NodeRow:
    if "live" not in query:
        row = replace(row, live=None, cores_used=None, cores_idle=None, gpus_measured=None)
    if "holders" in query:
        return row
    return replace(row, gpus=tuple(replace(each, holders=()) for each in row.gpus) if "gpus" in query else ())


def _pod_as_asked(row: PodRow, query: dict[str, str]) -> PodRow:
    if "live" in query:
        return row
    unasked = [replace(each, shares=tuple(replace(one, live=None) for one in each.shares)) for each in row.containers]
    return replace(row, containers=tuple(unasked))


def _cluster(head: dict[str, Any]) -> ClusterView:
    names = (
        "nodes nodes_with_problem gpus free_gpus unavailable_gpus cores cores_allocated blocks blocks_allocated "
        "pods_bound pods_reserved pods_pending"
    )
    counts: dict[str, Any] = dict.fromkeys(names.split(), 1)
    return ClusterView(scheduler_version="0.9.7", pending_by_reason={}, models={}, **counts, **head)


def status(code: int, message: str) -> web.Response:
    """As the API server refuses."""
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


def refusal(code: int, message: str) -> tuple[int, str]:
    """The same for `Cluster.answers`."""
    return code, json.dumps({"kind": "Status", "message": message, "code": code})


@asynccontextmanager
async def serving(cluster: Cluster, *, tls: Any = None) -> AsyncIterator[str]:
    """The server's URL."""
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", cluster.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
