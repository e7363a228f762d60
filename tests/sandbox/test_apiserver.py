"""The stand-in API server where it is more than the contract that it shares with a real one."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from sandbox.apiserver import ApiError, ApiServer, Harm, JsonObject, Store, container, node, pod

pytestmark = pytest.mark.thorough

PODS = "/api/v1/namespaces/default/pods"


async def call(server: ApiServer, method: str, path: str, body: JsonObject | None = None) -> tuple[int, JsonObject]:
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, data=json.dumps(body) if body else None, headers=headers) as reply,
    ):
        return reply.status, await reply.json()


async def watched(server: ApiServer, query: str, count: int) -> list[tuple[str, str]]:
    """The first events of a watch as (type, pod's name)."""
    found: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(5),
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/api/v1/pods?watch=1&{query}") as reply,
    ):
        async for line in reply.content:
            event = json.loads(line)
            found.append((event["type"], event["object"]["metadata"].get("name", "")))
            if len(found) == count:
                break
    return found


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


async def test_a_watcher_sees_pods_enter_and_leave_its_selector(server: ApiServer) -> None:
    server.store.create("pods", pod("a"))
    server.store.bind("a", "n1")
    server.store.patch("pods", "a", {"metadata": {"labels": {"app": "x"}}}, namespace="default")
    server.store.patch("pods", "a", {"metadata": {"labels": {"app": "y"}}}, namespace="default")
    server.store.set_status("a", {"phase": "Running"})
    assert await watched(server, "resourceVersion=1&labelSelector=app=x", 2) == [("ADDED", "a"), ("DELETED", "a")]
    running = "resourceVersion=1&fieldSelector=spec.nodeName=n1,status.phase=Running"
    assert await watched(server, running, 1) == [("ADDED", "a")]


async def test_a_watch_without_a_version_begins_with_what_is_there(server: ApiServer) -> None:
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    assert await watched(server, "", 2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_objects_are_created_read_replaced_and_deleted_over_http(server: ApiServer) -> None:
    status, made = await call(server, "POST", PODS, pod("a", container(cores=5, blocks=1)))
    assert (status, made["status"]["phase"]) == (201, "Pending")
    assert (await call(server, "POST", PODS, pod("a")))[0] == 409
    made["metadata"]["labels"] = {"app": "x"}
    assert (await call(server, "PUT", f"{PODS}/a", made))[0] == 200
    assert (await call(server, "PUT", f"{PODS}/a", made))[0] == 409
    assert (await call(server, "GET", f"{PODS}/a"))[1]["metadata"]["labels"] == {"app": "x"}
    assert (await call(server, "PATCH", f"{PODS}/a/status", {"status": {"phase": "Failed"}}))[0] == 200
    assert (await call(server, "DELETE", f"{PODS}/a"))[0] == 200
    assert (await call(server, "GET", f"{PODS}/a"))[0] == 404


async def test_a_binding_is_refused_the_second_time_and_for_another_uid(server: ApiServer) -> None:
    made = server.store.create("pods", pod("a"))
    binding = {"metadata": {"uid": "other"}, "target": {"name": "n1"}}
    assert (await call(server, "POST", f"{PODS}/a/binding", binding))[0] == 409
    binding["metadata"]["uid"] = made["metadata"]["uid"]
    assert (await call(server, "POST", f"{PODS}/a/binding", binding))[0] == 201
    assert (await call(server, "POST", f"{PODS}/a/binding", binding))[0] == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/api/v1/pods?fieldSelector=spec.foo=1", None, 400),
        ("GET", "/api/v1/pods?continue=nonsense", None, 400),
        ("GET", "/api/v1/pods?resourceVersion=99999", None, 504),
        ("GET", "/api/v1/configmaps", None, 404),
        ("POST", PODS, {"metadata": {}, "spec": {"containers": [{"name": "x"}]}}, 422),
        ("POST", PODS, {"metadata": {"name": "x"}}, 422),
        ("PATCH", f"{PODS}/absent", {"metadata": {}}, 404),
    ],
)
async def test_what_the_real_server_refuses_is_refused(
    server: ApiServer, method: str, path: str, body: JsonObject | None, code: int
) -> None:
    status, answer = await call(server, method, path, body)
    assert (status, answer["kind"], answer["code"]) == (code, "Status", code)


def test_a_write_that_changes_nothing_is_no_change() -> None:
    store = Store()
    store.create("nodes", node("n1"))
    version = store.version
    store.patch("nodes", "n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
    assert store.version == version


def test_what_the_store_gives_away_is_a_copy() -> None:
    store = Store()
    store.create("nodes", node("n1"))["metadata"]["labels"]["a"] = "1"
    store.get("nodes", "n1")["metadata"]["labels"]["a"] = "1"
    assert "a" not in store.get("nodes", "n1")["metadata"]["labels"]
    with pytest.raises(ApiError, match="not found"):
        store.get("nodes", "n2")


async def test_faults_meet_only_the_requests_that_they_name(server: ApiServer) -> None:
    server.store.create("nodes", node("n1"))
    server.faults.fail(503, times=2, method="GET", path="/nodes")
    server.faults.add(Harm.CUT_WATCH)
    codes = [(await call(server, "GET", path))[0] for path in ["/api/v1/pods", *["/api/v1/nodes/n1"] * 3]]
    assert codes == [200, 503, 503, 200]


async def test_a_port_survives_a_refusal_and_the_store_does_too(server: ApiServer) -> None:
    server.store.create("nodes", node("n1"))
    port = server.port
    async with server.refuse():
        with pytest.raises(aiohttp.ClientConnectorError):
            await call(server, "GET", "/healthz")
    assert server.port == port
    assert (await call(server, "GET", "/api/v1/nodes/n1"))[0] == 200


async def test_as_a_program_it_says_its_url_writes_a_kubeconfig_and_ends_on_sigterm(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    arguments = ["-m", "sandbox.apiserver", "--kubeconfig-out", str(kubeconfig), "--token", "t", "--node", "n1"]
    program = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    url = (await asyncio.wait_for(program.stdout.readline(), 60)).decode().strip()
    document = yaml.safe_load(kubeconfig.read_text())
    assert document["clusters"][0]["cluster"]["server"] == url
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/api/v1/nodes/n1") as reply:
            assert reply.status == 401
        async with session.get(f"{url}/api/v1/nodes/n1", headers={"Authorization": "Bearer t"}) as reply:
            assert reply.status == 200
    program.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(program.wait(), 60) == 0


async def test_a_wait_that_ends_in_vain_says_what_is_there(server: ApiServer) -> None:
    server.store.create("pods", pod("p", container(cores=1, blocks=1)))
    server.store.set_status("p", {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"})
    with pytest.raises(TimeoutError, match=r"^after 0\.1 s; pods: default/p: Failed UnexpectedAdmissionError no dev"):
        await server.until(lambda: False, seconds=0.1)
