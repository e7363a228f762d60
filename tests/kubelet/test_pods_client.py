"""What kubelet's list of pods says where kubelet refuses the agent."""

from pathlib import Path

import pytest

from deviceplugin.errors import KubeletError
from deviceplugin.kube.credentials import Access
from deviceplugin.kube.kubeconfig_process import Facts
from deviceplugin.kubelet.pods_client import KubeletPods
from deviceplugin.model.units import ResourceNames
from sandbox.kubelet import Kubelet, KubeletOptions


async def test_each_refusal_has_its_own_advice(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """Faults D3: while the API server was away, operators were told to change the agent's rights."""
    for status, said in [
        (401, r"does not know this agent's token \(401\); it asks the API server about tokens"),
        (403, r"refuses this agent \(403\); allow `get` on nodes/pods"),
        (500, "answered 500"),
    ]:
        with subtests.test(status=status):

            async def access() -> Access:
                return Access(Facts(server="https://unused", authorization="Bearer t"))

            async with Kubelet(KubeletOptions(root=short_tmp / "k")) as kubelet:
                kubelet.pods_faults.status = status
                client = KubeletPods(
                    kubelet.pods_url, access=access, node="node-1", names=ResourceNames(), insecure=True
                )
                try:
                    with pytest.raises(KubeletError, match=said) as refused:
                        await client.fetch()
                finally:
                    await client.close()
                assert ("nodes/pods" in refused.value.message) == (status == 403)
