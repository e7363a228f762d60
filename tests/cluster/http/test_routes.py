"""Good and bad requests over TLS: the right status, one sentence, and a number in the metrics."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.server import Routes, place_of
from deviceplugin.serve.connections import is_loopback
from deviceplugin.serve.messages import HttpError, HttpRequest
from deviceplugin.serve.server import Server
from tests.cluster.http.scene import Scene, StandIn, serving

SLOW_VIEW = b"GET /view/slow HTTP/1.1\r\nHost: x\r\n\r\n"


async def counted(scene: Scene, verb: str) -> dict[str, float]:
    """The outcomes that have happened; the others stand at 0."""
    _, text = await scene.get("/metrics")
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vcuda_scheduler_requests_total" and sample.labels["verb"] == verb and sample.value
    }


async def test_verbs_and_rejections_are_counted_and_the_gauges_of_the_service_are_served() -> None:
    async with serving() as scene:
        assert await scene.post("/webhook", b"{}") == (200, "{}")
        assert await scene.post("/filter", b"{}") == (200, '{"NodeNames":["n1"]}')
        assert await counted(scene, "webhook") == {"changed": 1}
        assert await counted(scene, "filter") == {"chosen": 1}
        _, text = await scene.get("/metrics")
        assert 'vcuda_scheduler_rejections_total{reason="insufficient vcuda-memory on any one GPU"} 2.0' in text
        assert 'vcuda_scheduler_certificate_expiration_timestamp_seconds{certificate="server"} 1.8e+09' in text
        assert "vcuda_scheduler_leader 1.0" in text


async def test_a_bad_request_is_one_sentence_and_the_next_good_one_is_answered() -> None:
    cases = [
        (b"{", 400, "the filter request cannot be read\n"),
        (b"", 400, "the filter request cannot be read\n"),
        (b" " * (8 << 20) + b"1", 413, "the body is larger than 8 MiB; send names instead of whole nodes\n"),
        (b'"bug"', 500, "vcuda internal error; see the scheduler's log\n"),
        (b'"kube"', 500, "the API server is away\n"),
    ]
    async with serving() as scene:
        for body, status, sentence in cases:
            assert await scene.post("/filter", body) == (status, sentence)
            assert (await scene.post("/filter", b"{}"))[0] == 200
        assert await counted(scene, "filter") == {"malformed": 2, "too_large": 1, "failed": 2, "chosen": len(cases)}


async def test_a_wrong_path_or_method_says_what_is_right() -> None:
    cases = [
        ("GET", "/nothing", 404, "", "no such path; the paths are /bind, /explain, /filter, /healthz"),
        ("GET", "/filter", 405, "POST", "GET is not allowed on this path; use POST"),
        ("PUT", "/bind", 405, "POST", "PUT is not allowed on this path; use POST"),
        ("POST", "/metrics", 405, "GET,HEAD", "POST is not allowed on this path; use GET"),
        ("POST", "/filter/", 404, "", "no such path; the paths are /bind"),
        ("OPTIONS", "/readyz", 405, "GET,HEAD", "OPTIONS is not allowed on this path; use GET,HEAD"),
        ("GET", "/explain", 400, "", "no pod given; use /explain?pod=NAMESPACE/NAME"),
        ("GET", "/explain?pod=a/b/c", 400, "", "no pod given; use /explain?pod=NAMESPACE/NAME"),
    ]
    found = []
    async with serving() as scene:
        for method, path, *_, sentence in cases:
            async with scene.session.request(method, f"{scene.url}{path}") as answer:
                said = (await answer.text())[: len(sentence)]
                found.append((method, path, answer.status, answer.headers.get("Allow", ""), said))
    assert found == cases


async def test_a_path_may_be_asked_for_without_its_text_and_in_other_spellings() -> None:
    async with serving() as scene:
        async with scene.session.head(f"{scene.url}/healthz") as answer:
            assert (answer.status, answer.content_length, await answer.read()) == (200, 3, b"")
        assert (await scene.post("/filter?timeout=5s", b"{}"))[0] == 200
        url = URL(f"{scene.url}/%66ilter", encoded=True)
        async with scene.session.post(url, data=b"{}") as answer:
            assert answer.status == 200


async def test_a_pod_is_explained_or_it_is_said_who_can() -> None:
    async with serving() as scene:
        assert await scene.get("/explain?pod=d/p") == (200, '{"pod":"d/p","sentence":"it waits"}')
        assert await scene.get("/explain?pod=d/elsewhere") == (421, '{"error":"replica b leads","leader":"b"}')
        unknown = '{"error":"pod d/unknown not found","leader":""}'
        assert await scene.get("/explain?pod=d/unknown") == (404, unknown)


async def test_the_view_gets_path_query_and_headers_and_its_answer_is_json() -> None:
    async with serving() as scene:
        url = f"{scene.url}/view/nodes/a%20b?limit=3"
        async with scene.session.get(url, headers={"X-Vcuda-Token": "t"}) as answer:
            assert answer.headers["Content-Type"].startswith("application/json")
            assert await answer.json() == {"path": "/view/nodes/a b", "query": {"limit": "3"}, "token": "t"}
        assert (await scene.get("/view/gone"))[0] == 404
        assert await scene.get("/view/bug") == (500, "vcuda internal error; see the scheduler's log\n")
        async with scene.session.head(f"{scene.url}/view/nodes") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with scene.session.post(f"{scene.url}/view/nodes") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")


async def test_nothing_is_answered_before_it_is_ready_but_it_lives() -> None:
    async with serving() as scene:
        scene.service.missing = ("it has not read the cluster's pods", "it has no certificate")
        sentence = "it has not read the cluster's pods; it has no certificate"
        assert await scene.get("/readyz") == (503, f"{sentence}\n")
        async with scene.session.post(f"{scene.url}/filter", data=b"{}") as answer:
            assert (answer.status, await answer.text()) == (
                503,
                f"the scheduler is not ready yet: {sentence}\n",
            )
            assert answer.headers["Connection"] == "close", "who is sent elsewhere does not stay on this connection"
        assert await scene.get("/healthz") == (200, "ok\n")
        scene.service.missing = ()
        assert await scene.get("/readyz") == (200, "ok\n")
        assert await counted(scene, "filter") == {"unavailable": 1}


async def test_a_load_balancer_finds_the_replica_that_leads_and_the_webhook_needs_none() -> None:
    async with serving() as scene:
        assert await scene.get("/readyz?leader") == (200, "ok\n")
        scene.service.leader = "replica-b"
        assert await scene.get("/readyz?leader") == (503, "replica-b leads\n")
        assert await scene.get("/readyz") == (200, "ok\n")
        scene.service.missing = ("it has not read the cluster's pods",)
        assert await scene.get("/readyz?leader") == (503, "it has not read the cluster's pods\n")


def test_loopback_addresses_are_recognized() -> None:
    loopback = ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"]
    others = ["10.0.0.7", "169.254.1.1", "::ffff:10.0.0.7", "fe80::1%eth0", "", None, "localhost"]
    assert [peer for peer in (*loopback, *others) if is_loopback(peer)] == loopback


def test_who_does_not_call_from_loopback_may_not_place_pods() -> None:
    service = StandIn()
    server = Server(Routes(service, SchedulerMetrics(service.gauges, version="1")).every, find=place_of)

    def asked(path: str, peer: str) -> str:
        try:
            request = HttpRequest("POST", path.encode(), {}, peer, frozenset(), lambda: False)
            server.route(request).check(request)
        except HttpError as error:
            return f"{error.status} {error.sentence}"
        return ""

    for peer in ("10.0.0.7", ""):
        for path in ("/filter", "/bind"):
            assert asked(path, peer) == f"403 {path} accepts requests from loopback only"
        assert asked("/webhook", peer) == ""
    assert asked("/filter", "127.0.0.1") == ""


async def test_long_work_for_a_client_that_leaves_ends() -> None:
    async with serving() as scene:
        for asked in (b'POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"slow"', SLOW_VIEW):
            scene.service.under_way.clear()
            _, writer = await scene.raw()
            writer.write(asked)
            await scene.service.under_way.wait()
            writer.transport.abort()
            stopped = scene.service.stopped
            while scene.service.stopped == stopped:
                await asyncio.sleep(0.01)
        assert await counted(scene, "filter") == {"disconnected": 1}
