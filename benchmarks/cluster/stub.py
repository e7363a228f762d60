"""The API server of the synthetic cluster: fast lists and watches; each Binding is answered after 5 ms.

In: numbers of nodes and pods. Out: a process that prints its URL. It is not measured itself, so it checks nothing and
encodes as much as possible in advance; `sandbox/apiserver` has the real semantics. Watchers see a bound pod as from a
real API server: bound, then running. With a port of agents it has the EndpointSlices of their Service.
`POST /bench/pods?from=A&to=B` creates pending pods, with `uuids` in an annotation that names so many GPUs; DELETE
removes them, PUT adds those of its body. `POST /bench/claims?from=A&to=B` creates claims, each of a pod that is there.

    python -m benchmarks.cluster.stub --nodes 5000 --pods 20000
"""

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.cluster import fleet
from benchmarks.command import announce
from sandbox.apiserver.patch import merge
from sandbox.apiserver.reviews import ACCESS, TOKENS, reviewed

BINDING_SECONDS = 0.005
PODS_A_NODE = 4
CLAIMS = "resource.k8s.io/v1"
CLAIM_KINDS = {"resourceclaims": "ResourceClaim", "resourceslices": "ResourceSlice"}
REPOSITORY = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


@dataclass(slots=True)
class Objects:
    """One resource: its encoded objects, and all changes so far as watch lines."""

    kind: str
    api_version: str
    items: dict[str, bytes] = field(default_factory=dict)
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, name: str, item: Json, version: int, *, what: str = "", delete: bool = False) -> None:
        item["metadata"]["resourceVersion"] = str(version)
        raw = msgspec.json.encode(item)
        if delete:
            del self.items[name]
        else:
            self.items[name] = raw
        if what:
            self.lines.append((version, b'{"type":"' + what.encode() + b'","object":' + raw + b"}\n"))
            self.changed.set()
            self.changed = asyncio.Event()


class Stub:
    """All resources of the synthetic cluster."""

    def __init__(self, nodes: int, pods: int, agents_port: int) -> None:
        self.version = 1
        self.slices = fleet.endpoint_slices(nodes, agents_port) if agents_port else []
        self.resources = {"nodes": Objects("Node", "v1"), "pods": Objects("Pod", "v1")} | {
            name: Objects(kind, CLAIMS) for name, kind in CLAIM_KINDS.items()
        }
        self.others: dict[str, Json] = {}
        self.later: set[asyncio.Task[None]] = set()
        for number in range(nodes):
            self.resources["nodes"].put(fleet.node_name(number), fleet.node(number), self._next())
        for pod in fleet.running_pods(nodes, pods):
            self.resources["pods"].put(pod["metadata"]["name"], pod, self._next())

    def application(self) -> web.Application:
        made = web.Application(client_max_size=1 << 26)
        made.router.add_get("/api/v1/{resource:nodes|pods}", self.collection)
        made.router.add_get(f"/apis/{CLAIMS}/{{resource:{'|'.join(CLAIM_KINDS)}}}", self.collection)
        made.router.add_get("/api/v1/{resource:nodes}/{name}", self.one)
        made.router.add_get("/api/v1/namespaces/default/{resource:pods}/{name}", self.one)
        made.router.add_patch("/api/v1/{resource:nodes}/{name}", self.patch)
        made.router.add_patch("/api/v1/namespaces/default/{resource:pods}/{name}", self.patch)
        made.router.add_patch("/api/v1/namespaces/default/{resource:pods}/{name}/status", self.patch)
        made.router.add_post("/api/v1/namespaces/default/pods/{name}/binding", self.bind)
        made.router.add_get("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", self.endpoints)
        made.router.add_post("/bench/pods", self.make)
        made.router.add_put("/bench/pods", self.put)
        made.router.add_delete("/bench/pods", self.unmake)
        made.router.add_post("/bench/claims", self.make_claims)
        made.router.add_route("*", "/{path:.*}", self.other)
        return made

    async def collection(self, request: web.Request) -> web.StreamResponse:
        resource = self.resources[request.match_info["resource"]]
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, resource)
        names = list(resource.items)
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", len(names) or 1))
        page, more = names[start : start + limit], start + limit < len(names)
        meta = {"resourceVersion": str(self.version), **({"continue": str(start + limit)} if more else {})}
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
        items = b",".join(resource.items[name] for name in page)
        body = msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, resource: Objects) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        since = int(request.query.get("resourceVersion", self.version))
        at = len(resource.lines)
        while at and resource.lines[at - 1][0] > since:
            at -= 1
        while True:
            changed, new = resource.changed, resource.lines[at:]
            if new:
                at += len(new)
                await response.write(b"".join(line for _, line in new))
            else:
                await changed.wait()

    async def one(self, request: web.Request) -> web.Response:
        found = self.resources[request.match_info["resource"]].items.get(request.match_info["name"])
        return _missing() if found is None else web.Response(body=found, content_type="application/json")

    async def patch(self, request: web.Request) -> web.Response:
        resource, name = self.resources[request.match_info["resource"]], request.match_info["name"]
        if name not in resource.items:
            return _missing()
        item = merge(msgspec.json.decode(resource.items[name]), await request.json())
        resource.put(name, item, self._next(), what="MODIFIED")
        return web.Response(body=resource.items[name], content_type="application/json")

    async def bind(self, request: web.Request) -> web.Response:
        binding = msgspec.json.decode(await request.read())
        pods, name = self.resources["pods"], request.match_info["name"]
        await asyncio.sleep(BINDING_SECONDS)
        if name not in pods.items:
            return _missing()
        item = msgspec.json.decode(pods.items[name])
        if item["spec"].get("nodeName"):
            return _status(409, "Conflict", f'pod "{name}" is already assigned to node "{item["spec"]["nodeName"]}"')
        item["spec"]["nodeName"] = binding["target"]["name"]
        item["metadata"]["annotations"] |= binding["metadata"].get("annotations") or {}
        item["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        pods.put(name, item, self._next(), what="MODIFIED")
        runs = asyncio.create_task(self._run(name))
        self.later.add(runs)
        runs.add_done_callback(self.later.discard)
        return _status(201, "", "")

    async def _run(self, name: str) -> None:
        """As if kubelet started it a second later."""
        await asyncio.sleep(1.0)
        pods = self.resources["pods"]
        if name in pods.items:
            item = msgspec.json.decode(pods.items[name])
            item["status"]["phase"] = "Running"
            pods.put(name, item, self._next(), what="MODIFIED")

    async def endpoints(self, request: web.Request) -> web.Response:
        """Those of the agents, in one page."""
        meta = {"resourceVersion": str(self.version)}
        head = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": meta}
        return web.json_response({**head, "items": self.slices})

    async def make(self, request: web.Request) -> web.Response:
        avoided = fleet.avoiding(int(request.query.get("uuids", 0)))
        for number in range(int(request.query["from"]), int(request.query["to"])):
            pod = fleet.pending_pod(number)
            pod["metadata"]["annotations"] |= avoided
            self.resources["pods"].put(pod["metadata"]["name"], pod, self._next(), what="ADDED")
        return web.Response()

    async def put(self, request: web.Request) -> web.Response:
        """The pods of the body."""
        for pod in msgspec.json.decode(await request.read()):
            self.resources["pods"].put(pod["metadata"]["name"], pod, self._next(), what="ADDED")
        return web.Response()

    async def make_claims(self, request: web.Request) -> web.Response:
        for number in range(int(request.query["from"]), int(request.query["to"])):
            pod, claim = fleet.claiming(number)
            for resource, item in (("resourceclaims", claim), ("pods", pod)):
                self.resources[resource].put(item["metadata"]["name"], item, self._next(), what="ADDED")
        return web.Response()

    async def unmake(self, request: web.Request) -> web.Response:
        """Returns how many of them were bound."""
        bound, pods = 0, self.resources["pods"]
        for number in range(int(request.query["from"]), int(request.query["to"])):
            item = msgspec.json.decode(pods.items[fleet.pending_name(number)])
            bound += bool(item["spec"].get("nodeName"))
            pods.put(fleet.pending_name(number), item, self._next(), what="DELETED", delete=True)
        return web.Response(text=str(bound))

    async def other(self, request: web.Request) -> web.StreamResponse:
        """Leases, Secrets, events and others: stored by path, never listed."""
        path, version = request.path.rstrip("/"), str(self._next())
        if request.method == "GET" and "watch" in request.query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.Event().wait()
        if request.method == "GET":
            return web.json_response(self.others[path]) if path in self.others else _missing()
        if request.method == "DELETE":
            return web.json_response(self.others.pop(path, {}))
        item: Json = await request.json()
        if path in (TOKENS, ACCESS):
            return web.json_response(reviewed(path, item), status=201)
        if request.method == "PATCH":
            item = merge(self.others.get(path, {"metadata": {}}), item)
        if request.method == "POST":
            meta = item.setdefault("metadata", {})
            path = f"{path}/{meta.get('name') or meta.get('generateName', '') + version}"
        item["metadata"] |= {"resourceVersion": version, "uid": item["metadata"].get("uid", f"uid-{version}")}
        self.others[path] = item
        return web.json_response(item, status=201 if request.method == "POST" else 200)

    def _next(self) -> int:
        self.version += 1
        return self.version


@contextlib.contextmanager
def stub_server(nodes: int, pods: int, agents_port: int = 0) -> Iterator[tuple[str, int]]:
    """Its URL and process ID. It builds its data before the measured process starts."""
    sizes = [f"--nodes={nodes}", f"--pods={pods}", f"--agents-port={agents_port}"]
    command = [sys.executable, "-m", "benchmarks.cluster.stub", *sizes]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def _missing() -> web.Response:
    return _status(404, "NotFound", "not found")


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Success" if code < 300 else "Failure", "code": code}
    return web.json_response({**body, "reason": reason, "message": message}, status=code)


async def _serve(nodes: int, pods: int, agents_port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(Stub(nodes, pods, agents_port).application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    announce(f"http://127.0.0.1:{runner.addresses[0][1]}")
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--agents-port", type=int, default=0, help="where benchmarks.cluster.agents listens; 0: none")
    given = parser.parse_args()
    asyncio.run(_serve(given.nodes, given.pods, given.agents_port))
