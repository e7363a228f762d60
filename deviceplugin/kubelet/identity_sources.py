"""The three identity sources of `--identity`: what kubelet or the API server shows of the pods of this node.

In: kubelet's `GET /pods`, its PodResources socket, the API server's watch. Out: the containers that a call may be for,
by the rules of `identity`; a KubeletError in one sentence where kubelet does not answer. No source has a time limit
here: `Identity` gives each its time.

`PodsSource` asks kubelet's `GET /pods`. It is exact: kubelet adds a pod to this list before it admits it, and the next
pod only afterwards (verified on kubelet 1.36). `PodResourcesSource` compares the API server's watch with kubelet's
PodResources; it is exact for app and restartable init containers, but for pods that kubelet has refused: before 1.36 it
shows them too. `PendingSource` takes the pending pods of the API server in the order of the scheduler's predictions. It
is a guess, as in gpu-manager: kubelet may admit pods in another order.

`KubeletPods` is the client of `GET https://<node>:10250/pods`, with the credentials of the API server. Kubelet asks the
API server whether the agent may (`nodes/pods`, before 1.33 `nodes/proxy`) and keeps the answer, so a call takes about 3
ms. Kubelet's certificate is checked, for the node's name, against `--kubelet-ca-file`, its own self-signed certificate
in `<root>/pki/kubelet.crt`, or the cluster's CA: another server on that port would get the agent's token. The
connection is kept open; a kubelet that restarted costs one more try. Everybody who may create pods on the node writes
into this list, with or without a GPU. So it is read within a bound, by one request at a time for all who wait, and a
large one is parsed in a thread. Beyond the bound it counts as no answer, and for some seconds kubelet is not asked
again: each source of identity behind this one is cheaper then.

`PodResources` is the client of `<root>/pod-resources/kubelet.sock`: which device IDs kubelet has given to which
container, by name. The API has no UIDs and no plain init containers. All clients of the node share 100 calls a second
with a burst of 10; above that it answers RESOURCE_EXHAUSTED, and the call is tried once more after 20 ms. `Get` (on by
default since kubelet 1.34) is preferred: `List` makes kubelet free devices of ended pods, which may drop the
reservation of the Allocate call in progress (kubernetes#119560). Refused and ended pods are hidden by `List` since 1.34
and by `Get` since 1.36; before, both show them until kubelet forgets the pod. Kubelet's errors have no code of their
own, and tenants name what its sentences name: only whole sentences are compared.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import aiohttp
import grpc
import msgspec
import structlog

from deviceplugin.errors import ConfigError, GetMissingError, KubeError, KubeletError, ParseError
from deviceplugin.kube.credentials import Access, show_certificate, trusted
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kube.transport import cause, opened_session, read_within
from deviceplugin.kubelet.answers import AnswerReader
from deviceplugin.kubelet.identity import Pairs, Question, candidates, readmitted, unread_pod
from deviceplugin.latest import InTurn
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import ResourceNames
from deviceplugin.wire import podresources_pb2 as pb
from deviceplugin.wire import podresources_pb2_grpc as rpc

MOST_MESSAGE = 16 << 20
"""One entry for each device ID: 16 GPUs of 141 GiB have 10,600, with 100 bytes each, and others may have as many."""

_RETRY_AFTER_S = 0.02
_TURNED_OFF = "PodResources API Get method disabled"  # kubelet 1.27 to 1.35 without the gate KubeletPodResourcesGet
_Answer = TypeVar("_Answer")


class PodDevices(msgspec.Struct, frozen=True):
    """A pod as this API shows it; `held` has the container and the resource of each list of device IDs."""

    namespace: str
    name: str
    held: frozenset[tuple[str, str]]
    containers: tuple[str, ...] = ()

    def lacks(self, container: str, resource_name: str) -> bool:
        return (container, resource_name) not in self.held


Views = list[PodDevices]


class PodResources:
    """One lazy channel; a call has `timeout_s` and raises KubeletError, never a gRPC error.

    `without_get_s`: how long a kubelet without `Get` is not asked for it again. Kubelet may be upgraded meanwhile.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 8.0, without_get_s: float = 300.0) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._without_get_s = without_get_s
        self._channel: grpc.aio.Channel | None = None
        self._no_get_until = 0.0
        self._lists = InTurn(self._list)

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """The pod, or None if kubelet does not show it; GetMissingError if this kubelet has no `Get`."""
        if time.monotonic() < self._no_get_until:
            raise _no_get()
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = await self._call(lambda stub: stub.Get(request, timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            if _knows_no_such_pod(error, request):
                return None
            if not _has_no_get(error):
                raise self._unavailable(error) from None
            self._no_get_until = time.monotonic() + self._without_get_s
            raise _no_get() from None
        return _pod(answer.pod_resources)

    async def list(self) -> list[PodDevices]:
        """One call at a time, for all who wait: everybody who may create pods adds to it."""
        return await self._lists.get()

    async def _list(self) -> Views:
        try:
            answer = await self._call(lambda stub: stub.List(pb.ListPodResourcesRequest(), timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        return _pods(answer) if answer.ByteSize() <= _AT_ONCE else await asyncio.to_thread(_pods, answer)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _unavailable(self, error: grpc.aio.AioRpcError) -> KubeletError:
        return KubeletError(f"kubelet's PodResources socket {self._socket} answered {error.code().name.lower()}")

    async def _call(self, call: Callable[[rpc.PodResourcesListerStub], Awaitable[_Answer]]) -> _Answer:
        try:
            return await call(self._stub())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await asyncio.sleep(_RETRY_AFTER_S)
        return await call(self._stub())

    def _stub(self) -> rpc.PodResourcesListerStub:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MOST_MESSAGE), ("grpc.max_reconnect_backoff_ms", 1000)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        return rpc.PodResourcesListerStub(self._channel)


def _pods(answer: pb.ListPodResourcesResponse) -> Views:
    return [_pod(pod) for pod in answer.pod_resources]


def _pod(pod: pb.PodResources) -> PodDevices:
    held = ((each.name, entry.resource_name) for each in pod.containers for entry in each.devices if entry.device_ids)
    return PodDevices(pod.namespace, pod.name, frozenset(held), tuple(each.name for each in pod.containers))


def _knows_no_such_pod(error: grpc.aio.AioRpcError, asked: pb.GetPodResourcesRequest) -> bool:
    sentence = f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found"
    return error.code() is grpc.StatusCode.NOT_FOUND or error.details() == sentence


def _has_no_get(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.UNIMPLEMENTED or error.details() == _TURNED_OFF


def _no_get() -> GetMissingError:
    return GetMissingError("this kubelet's PodResources API has no Get (it is older than 1.34, or the gate is off)")


log = structlog.get_logger("vcuda.kubelet")
_FETCH_S = 2.0
_MAX_GETS = 8  # of the burst of 10 that all PodResources clients of the node share


class PodsSource:
    """Asks kubelet for all pods at each question: about 3 ms, and never stale."""

    source = Source.PODS
    exact = True

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Pod]]], answers: AnswerReader) -> None:
        self._fetch = fetch
        self._answers = answers

    async def candidates(self, question: Question) -> Pairs:
        pods = await self._fetch()
        if found := candidates(pods, question, await self._answers.read(pods, question.resource)):
            return found
        return readmitted(pods, question, await self._answers.read(pods, question.resource, even_running=True))

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        wanted = {pod.ref.uid for pod, _ in await self.candidates(question)}
        return [pair for pair in pairs if pair[0].ref.uid in wanted]


class PodResourcesSource:
    """`known` are the watched pods; `fetch` reads one pod from the API server if the watch lags behind kubelet.

    PodResources shows a pod from the start of its admission. A refused pod disappears from `List` since kubelet 1.34
    and from `Get` since 1.36; before, it counts until the watch shows that it has failed, and PreStartContainer gives
    what it got to the right container. Plain init containers are not shown: such a pod counts as long as none of its
    app containers has the resource.
    """

    source = Source.PODRESOURCES
    exact = True

    def __init__(
        self,
        client: PodResources,
        answers: AnswerReader,
        *,
        known: Callable[[], Sequence[Pod]],
        fetch: Callable[[str, str], Awaitable[Pod | None]],
        names: ResourceNames,
    ) -> None:
        self._client = client
        self._answers = answers
        self._known = known
        self._fetch = fetch
        self._names = names

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        fitting = candidates(known, question, await self._answers.read(known, question.resource))
        if found := await self.narrow(question, sorted(fitting, key=_bind_order)):
            return found
        if found := await self._unwatched(question, known):
            return found
        answers = await self._answers.read(known, question.resource, even_running=True)
        return await self.narrow(question, readmitted(known, question, answers))

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        if not pairs:
            return []
        views = await self._views([pod for pod, _ in pairs])
        name = self._names.of(question.resource)
        return [pair for pair in pairs if (view := views.get(_name(pair[0]))) and _lacks(view, pair, name)]

    async def _views(self, pods: Sequence[Pod]) -> dict[tuple[str, str], PodDevices]:
        if len(pods) <= _MAX_GETS:
            try:
                got = [await self._client.get(pod.ref.namespace, pod.ref.name) for pod in pods]
            except KubeletError:
                pass
            else:
                return {(view.namespace, view.name): view for view in got if view is not None}
        return {(view.namespace, view.name): view for view in await self._client.list()}

    async def _unwatched(self, question: Question, known: Sequence[Pod]) -> Pairs:
        """Pods that kubelet has and the watch does not show yet.

        If the API server does not answer, what PodResources shows of them is all there is: static pods start without
        an API server too.
        """
        watched = {_name(pod) for pod in known}
        views = [view for view in await self._client.list() if (view.namespace, view.name) not in watched]
        try:
            async with asyncio.timeout(_FETCH_S):
                fetched = [await self._fetch(view.namespace, view.name) for view in views]
        except (KubeError, TimeoutError) as error:
            log.warning("unread_pods", pods=[f"{view.namespace}/{view.name}" for view in views], error=str(error))
            return [pair for view in views for pair in self._unread(view, question)]
        pods = [pod for pod in fetched if pod is not None]
        return await self.narrow(
            question, candidates(pods, question, await self._answers.read(pods, question.resource))
        )

    def _unread(self, view: PodDevices, question: Question) -> Pairs:
        """Its containers that lack the resource, on the emptiest GPU: the other count may be anything.

        A container that has the other resource already comes alone, because kubelet asks for both in a row.
        """
        names, wanted = self._names, question.resource
        annotations = {annotation_names(names.domain).gpu_policy: GpuPolicy.SPREAD.value}
        lacking = [each for each in view.containers if view.lacks(each, names.of(wanted))]
        half = [each for each in lacking if not view.lacks(each, names.of(wanted.other))]
        pods = [unread_pod(view.namespace, view.name, each, question, annotations) for each in half or lacking]
        return [(pod, pod.containers[0]) for pod in pods]


class PendingSource:
    """`predicate_time` reads the scheduler's annotation of a pod, in nanoseconds; None if the pod has none.

    The guess is marked as one; PreStartContainer proves or repairs it.
    """

    source = Source.APISERVER
    exact = False

    def __init__(
        self,
        known: Callable[[], Sequence[Pod]],
        answers: AnswerReader,
        *,
        predicate_time: Callable[[Pod], int | None],
    ) -> None:
        self._known = known
        self._answers = answers
        self._predicate_time = predicate_time

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        answers = self._answers.given()
        found = candidates(known, question, answers)
        if question.guess is not None:
            # The previous guess does not fit, so the container that wants both counts was meant.
            found = [pair for pair in found if question.completes(pair[1], answers)] or found
        if not found:
            found = await self._readmitted(question, known)
        return sorted(found, key=lambda pair: self._order(pair[0]))

    async def _readmitted(self, question: Question, known: Sequence[Pod]) -> Pairs:
        """Kubelet can only have lost what is proved or was paired in the previous call, never another guess."""
        answers = await self._answers.read(known, question.resource, even_running=True)
        paired = question.guess.owner.key if question.guess is not None else None
        return [
            pair
            for pair in readmitted(known, question, answers)
            if pair[1].ref.key in answers.proved or pair[1].ref.key == paired
        ]

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        return list(pairs)

    def _order(self, pod: Pod) -> tuple[float, str]:
        try:
            predicted = self._predicate_time(pod)
        except ParseError:
            predicted = None
        return (predicted / 1e9 if predicted is not None else pod.created, pod.ref.name)


def _name(pod: Pod) -> tuple[str, str]:
    return (pod.ref.namespace, pod.ref.name)


def _bind_order(pair: tuple[Pod, PodContainer]) -> tuple[int, float]:
    version = pair[0].resource_version
    return (int(version) if version.isdigit() else 0, pair[0].created)


def _lacks(view: PodDevices, pair: tuple[Pod, PodContainer], resource_name: str) -> bool:
    pod, container = pair
    if container.role is not ContainerRole.INIT:
        return view.lacks(container.ref.name, resource_name)
    apps = (each.ref.name for each in pod.containers if each.role is ContainerRole.APP)
    return all(view.lacks(name, resource_name) for name in apps)


MOST_BODY = 8 << 20
"""32 KiB for each of 250 pods, the most that GKE and OpenShift put on a node. An ordinary pod has about 10 KiB."""

_AGAIN_S = 10.0  # after a list beyond the bound
_IDLE_S = 60.0
_SILENT_S = 30.0  # a request for which somebody waits longer than all limits of those who ask
_AT_ONCE = 512 << 10  # parsed on the loop: 0.7 ms, or 6 where every pod has changed; a thread lets it go after 5


class KubeletPods:
    """One kept connection; `fetch` may be called at any time, also in parallel. `observe` gets each list.

    `on_too_large` is called for each list beyond the bound.
    """

    def __init__(
        self,
        url: str,
        *,
        access: Callable[[], Awaitable[Access]],
        node: str,
        names: ResourceNames,
        own_ca_files: tuple[Path, ...] = (),
        observe: Callable[[Sequence[Pod]], None] = lambda _: None,
        on_too_large: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._access = access
        self._node = node
        self._reader = PodListReader(names)
        self._own_ca_files = own_ca_files
        self._observe = observe
        self._on_too_large = on_too_large
        self._lists = InTurn(self._fetch)
        self._parsing: asyncio.Future[tuple[Pod, ...]] | None = None
        self._asks_again_at = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._context: tuple[Access, ssl.SSLContext] | None = None

    async def fetch(self) -> tuple[Pod, ...]:
        """All pods that kubelet knows, static ones included, of a list that was asked for after this call."""
        return await self._lists.get()

    async def _fetch(self) -> tuple[Pod, ...]:
        if time.monotonic() < self._asks_again_at:
            raise _too_large()
        try:
            access = await self._access()
        except ConfigError as error:
            raise KubeletError(f"kubelet cannot be asked for its pods: {error.finding}", advice=error.advice) from None
        body = await self._get(access)
        try:
            pods = await self._parse(body)
        except ParseError as error:
            raise KubeletError(f"kubelet's list of pods cannot be read: {error.message}") from None
        self._observe(pods)
        return pods

    async def _parse(self, body: bytes) -> tuple[Pod, ...]:
        """A thread that has begun goes on though nobody waits any more, and then it is waited for."""
        if len(body) <= _AT_ONCE:
            return self._reader.read(body)
        if self._parsing is not None:
            await asyncio.wait([self._parsing])
        self._parsing = asyncio.get_running_loop().run_in_executor(None, self._reader.read, body)
        return await asyncio.shield(self._parsing)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _get(self, access: Access) -> bytes:
        try:
            with contextlib.suppress(aiohttp.ServerDisconnectedError):  # kubelet restarted: one more try
                return await self._request(access)
            return await self._request(access)
        except (aiohttp.ClientError, OSError) as error:
            raise KubeletError(f"kubelet at {self._url} cannot be asked: {cause(error)}") from None

    async def _request(self, access: Access) -> bytes:
        if self._session is None:
            self._session = opened_session(1, idle_s=_IDLE_S, longest_s=_SILENT_S)
        context = await self._tls(access) if self._url.startswith("https:") else True
        name = None if context is True else self._node
        async with self._session.get(
            self._url, headers=access.headers, ssl=context, server_hostname=name, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise _refusal(self._url, response.status)
            body = await read_within(response, MOST_BODY)
            if body is None:
                response.close()  # what is left of it is not read
                raise self._give_up()
            return body

    def _give_up(self) -> KubeletError:
        self._asks_again_at = time.monotonic() + _AGAIN_S
        self._on_too_large()
        return _too_large()

    async def _tls(self, access: Access) -> ssl.SSLContext:
        if self._context is None or self._context[0] is not access:
            context = await asyncio.to_thread(self._make_context, access)
            self._context = (access, context)
        return self._context[1]

    def _make_context(self, access: Access) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        for ca_file in self._own_ca_files:
            if ca_file.is_file():
                context.load_verify_locations(ca_file)
        if access.facts.ca:
            context.load_verify_locations(cadata=trusted(access.facts.ca))
        show_certificate(context, access.facts.certificate, access.facts.key)
        return context


def _too_large() -> KubeletError:
    return KubeletError(
        f"kubelet's list of pods is larger than {MOST_BODY >> 20} MiB, so another source says which container asks",
        advice="look for pods of this node that have very much text, such as environment values",
    )


def _refusal(url: str, status: int) -> KubeletError:
    if status == 401:
        return KubeletError(
            f"kubelet at {url} does not know this agent's token (401)",
            advice="it asks the API server about tokens, so check that one is reachable, and then "
            "authentication.webhook in kubelet's configuration",
        )
    if status == 403:
        advice = "allow `get` on nodes/pods (before 1.33: nodes/proxy)"
        return KubeletError(f"kubelet at {url} refuses this agent (403)", advice=advice)
    return KubeletError(f"kubelet at {url} answered {status}")
