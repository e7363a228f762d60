"""Kubelet's PodResources socket, as kubelets of several versions serve it: what is there, and what is off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.podresources import PodResources
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.options import PodResourcesForm
from sandbox.station import pod_json


@asynccontextmanager
async def asked(kubelet: Kubelet, *, without_get_s: float = 300.0) -> AsyncIterator[PodResources]:
    client = PodResources(kubelet.options.podresources_socket, without_get_s=without_get_s)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("namespace", ["default", "disabled", "disabled-team", "not-found"])
@pytest.mark.parametrize("name", ["web-disabled", "disabled", "not-found", "web"])
async def test_a_pod_that_is_not_there_is_none_whatever_its_name_is(short_tmp: Path, namespace: str, name: str) -> None:
    """Kubelet's sentence has the names in it: one pod `web-disabled` took `Get` from the agent until it restarted."""
    async with Kubelet(KubeletOptions(root=short_tmp / "k")) as kubelet, asked(kubelet) as client:
        assert await client.get(namespace, name) is None
        kubelet.submit(pod_json("here", ("c", 0, 0)))
        await kubelet.changes.until(lambda: bool(kubelet.pod_list()), what="the pod is there", deadline_s=60)
        found = await client.get("default", "here")
        assert found is not None
        assert found.name == "here"


@pytest.mark.parametrize("form", ["1.27", "1.26"])
async def test_a_kubelet_without_get_says_so_and_is_not_asked_again_at_once(
    short_tmp: Path, form: PodResourcesForm
) -> None:
    options = KubeletOptions(root=short_tmp / "k", podresources_form=form)
    async with Kubelet(options) as kubelet, asked(kubelet) as client:
        for _ in range(20):  # more than the burst that all clients share
            with pytest.raises(KubeletError, match="has no Get"):
                await client.get("default", "a")
        assert await client.list() == []


async def test_get_that_comes_with_another_kubelet_is_found_out(short_tmp: Path) -> None:
    """An upgrade of kubelet does not restart the agent."""
    root = short_tmp / "k"
    old = KubeletOptions(root=root, podresources_form="1.27")
    async with Kubelet(old) as kubelet, asked(kubelet, without_get_s=0.2) as client:
        with pytest.raises(KubeletError, match="has no Get"):
            await client.get("default", "a")
        await kubelet.stop()
        async with Kubelet(KubeletOptions(root=root)):
            await asyncio.sleep(0.2)
            assert await client.get("default", "a") is None
