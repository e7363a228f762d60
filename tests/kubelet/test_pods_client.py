"""Kubelet's list of pods: what is said where kubelet refuses, and what it costs that everybody writes into it."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.errors import KubeletError
from deviceplugin.kube.credentials import Access, Facts
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kubelet.identity_sources import MOST_BODY, KubeletPods
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames
from sandbox.kubelet import Kubelet, KubeletOptions


async def access() -> Access:
    return Access(Facts(server="https://unused", authorization="Bearer t"))


class Counted:
    def __init__(self) -> None:
        self.too_large = 0

    def one(self) -> None:
        self.too_large += 1


@contextlib.asynccontextmanager
async def asked(root: Path, counted: Counted | None = None) -> AsyncIterator[tuple[Kubelet, KubeletPods]]:
    async with Kubelet(KubeletOptions(root=root / "k", token="t")) as kubelet:
        client = KubeletPods(
            kubelet.pods_url,
            access=access,
            node="node-1",
            names=ResourceNames(),
            own_ca_files=(root / "k" / "pki" / "kubelet.crt",),
            on_too_large=(counted or Counted()).one,
        )
        try:
            yield kubelet, client
        finally:
            await client.close()


def others(count: int, size: int) -> bytes:
    """Pods as anybody may make them."""
    return b",".join(
        json.dumps(
            {
                "metadata": {"name": f"other-{number}", "namespace": "tenant", "uid": f"u-{number}"},
                "spec": {"containers": [{"name": "c", "env": [{"name": "V", "value": "x" * size}]}]},
            }
        ).encode()
        for number in range(count)
    )


async def test_each_refusal_has_its_own_advice(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """Faults D3: while the API server was away, operators were told to change the agent's rights."""
    for status, said in [
        (401, r"does not know this agent's token \(401\); it asks the API server about tokens"),
        (403, r"refuses this agent \(403\); allow `get` on nodes/pods"),
        (500, "answered 500"),
    ]:
        with subtests.test(status=status):
            async with asked(short_tmp) as (kubelet, client):
                kubelet.pods_faults.status = status
                with pytest.raises(KubeletError, match=said) as refused:
                    await client.fetch()
                assert ("nodes/pods" in refused.value.message) == (status == 403)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_list_beyond_the_bound_counts_as_no_answer_and_is_not_asked_for_again_at_once(
    short_tmp: Path, chunked: bool
) -> None:
    """Security A-2: 200 pods of 1.4 MB were read whole at each start, until the agent was killed for memory."""
    counted = Counted()
    async with asked(short_tmp, counted) as (kubelet, client):
        kubelet.pods_faults.others, kubelet.pods_faults.chunked = others(64, 1 << 20), chunked
        for _ in range(3):
            with pytest.raises(KubeletError, match=r"list of pods is larger than 8 MiB, so another source"):
                await client.fetch()
        assert (kubelet.pods_requests, counted.too_large) == (1, 1)
        client._asks_again_at = 0.0
        kubelet.pods_faults.others = b""
        assert await client.fetch() == ()


async def test_a_full_node_of_ordinary_pods_is_read(short_tmp: Path) -> None:
    async with asked(short_tmp) as (kubelet, client):
        kubelet.pods_faults.others = others(250, 32_000)
        assert MOST_BODY * 0.9 < len(kubelet.pods_faults.others) < MOST_BODY
        assert len(await client.fetch()) == 250


async def test_all_who_wait_share_a_list_that_was_asked_for_after_they_came(short_tmp: Path) -> None:
    """Kubelet adds a pod to its list and asks at once: a list from before does not show it."""
    async with asked(short_tmp) as (kubelet, client):
        kubelet.pods_faults.others, kubelet.pods_faults.delay_s = others(1, 1), 0.2
        first = asyncio.create_task(client.fetch())
        while not kubelet.pods_requests:
            await asyncio.sleep(0.01)
        later = [asyncio.create_task(client.fetch()) for _ in range(50)]
        await asyncio.sleep(0)
        kubelet.pods_faults.others = others(2, 1)
        await first
        assert {len(each) for each in await asyncio.gather(*later)} == {2}
        assert kubelet.pods_requests == 2


async def test_a_list_that_nobody_waits_for_any_more_delays_no_other(short_tmp: Path) -> None:
    async with asked(short_tmp) as (kubelet, client):
        kubelet.pods_faults.hang = True
        late = [asyncio.create_task(client.fetch()) for _ in range(3)]
        while not kubelet.pods_requests:
            await asyncio.sleep(0.01)
        behind = asyncio.create_task(client.fetch())
        await asyncio.sleep(0)
        kubelet.pods_faults.hang = False
        for each in late:
            each.cancel()
        async with asyncio.timeout(20):  # a request ends by itself after 30 s
            assert await behind == ()
        assert all(each.cancelled() for each in late)


async def test_a_failure_reaches_all_who_wait_and_the_next_is_asked(short_tmp: Path) -> None:
    async with asked(short_tmp) as (kubelet, client):
        kubelet.pods_faults.garbled = True
        found = await asyncio.gather(*(client.fetch() for _ in range(3)), return_exceptions=True)
        assert {type(each) for each in found} == {KubeletError}
        kubelet.pods_faults.garbled = False
        assert await client.fetch() == ()


class WhereRead(PodListReader):
    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def read(self, body: bytes) -> tuple[Pod, ...]:
        self.threads.append(threading.get_ident())
        return super().read(body)


async def test_a_large_list_is_parsed_beside_the_loop(short_tmp: Path) -> None:
    """Eight MiB of small containers take a second."""
    async with asked(short_tmp) as (kubelet, client):
        client._reader = reader = WhereRead()
        for count in (1, 6):
            kubelet.pods_faults.others = others(count, 100_000)
            assert len(await client.fetch()) == count
        assert [each == threading.get_ident() for each in reader.threads] == [True, False]
