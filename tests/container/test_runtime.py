"""The container runtime over its CRI socket, against a server of the same protocol."""

import time
from pathlib import Path

import pytest

from deviceplugin.container.containers import ContainerRuntime
from deviceplugin.errors import ConfigError, RuntimeApiError
from deviceplugin.model.allocation import PodUid
from sandbox.runtime import RuntimeBehaviour, RuntimeContainer, StandInRuntime

UID = PodUid("uid-1")
CDI_DIR = Path("/var/run/cdi")
CONTAINERS = [
    RuntimeContainer("id-main", "uid-1", "main", pid=41),
    RuntimeContainer("id-old", "uid-1", "main", is_running=False, created_at=9),
    RuntimeContainer("id-side", "uid-1", "side", pid=42),
    RuntimeContainer("id-else", "uid-2", "main", pid=43),
]


async def test_the_running_containers_of_one_pod_by_name(short_tmp: Path) -> None:
    async with StandInRuntime(short_tmp / "cri.sock", containers=CONTAINERS):
        runtime = ContainerRuntime(short_tmp / "cri.sock", timeout_s=60)
        assert await runtime.running(UID) == {"main": "id-main", "side": "id-side"}
        assert await runtime.running(PodUid("uid-3")) == {}
        await runtime.close()


async def test_of_two_with_one_name_the_younger_counts(short_tmp: Path) -> None:
    twice = [RuntimeContainer("new", "uid-1", "main", created_at=2), RuntimeContainer("old", "uid-1", "main")]
    async with StandInRuntime(short_tmp / "cri.sock", containers=twice):
        runtime = ContainerRuntime(short_tmp / "cri.sock", timeout_s=60)
        assert await runtime.running(UID) == {"main": "new"}
        await runtime.close()


async def test_the_first_process_where_the_runtime_tells_it(short_tmp: Path) -> None:
    pids = {RuntimeBehaviour.CONTAINERD: 41, RuntimeBehaviour.CRIO: 41, RuntimeBehaviour.DOCKERD: None}
    found = {}
    for manner in pids:
        socket = short_tmp / f"{manner.value}.sock"
        async with StandInRuntime(socket, manner, CONTAINERS):
            runtime = ContainerRuntime(socket, timeout_s=60)
            found[manner] = await runtime.pid("id-main")
            await runtime.close()
    assert found == pids


async def test_whether_it_knows_cdi(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for number, (manner, version, knows) in enumerate(
        (
            (RuntimeBehaviour.CONTAINERD, "v2.2.9", True),
            (RuntimeBehaviour.CONTAINERD, "1.7.2", True),
            (RuntimeBehaviour.CONTAINERD, "1.7.1", False),
            (RuntimeBehaviour.CONTAINERD, "1.6.20~ds1", False),
            (RuntimeBehaviour.CONTAINERD, "unknown", False),
            (RuntimeBehaviour.CRIO, "1.28.0", True),
            (RuntimeBehaviour.CRIO, "1.27.9", False),
            (RuntimeBehaviour.DOCKERD, "28.0.0", False),
        )
    ):
        socket = short_tmp / f"{number}.sock"
        with subtests.test(runtime=manner.value, version=version):
            async with StandInRuntime(socket, manner, version=version):
                runtime = ContainerRuntime(socket, timeout_s=60)
                if knows:
                    await runtime.require_cdi(CDI_DIR)
                else:
                    with pytest.raises(ConfigError, match=f"this node has {manner.value} {version}; upgrade it"):
                        await runtime.require_cdi(CDI_DIR)
                await runtime.close()


async def test_what_the_runtime_says_of_cdi_counts_and_not_its_version(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """containerd 1.7 has CDI off unless its configuration says otherwise, and then drops a claim's devices silently."""
    off = "has CDI switched off"
    away = "reads CDI files in /var/cdi/static and /var/cdi/dynamic, and not in /var/run/cdi"
    usual = ["/etc/cdi", "/var/run/cdi"]
    cases: list[tuple[str, dict[str, object], str]] = [
        ("1.7.27", {"enableCDI": False, "cdiSpecDirs": usual}, off),
        ("2.1.4", {"enableCDI": False, "cdiSpecDirs": usual}, off),
        ("2.1.4", {"enableCDI": True, "cdiSpecDirs": ["/var/cdi/static", "/var/cdi/dynamic"]}, away),
        ("2.1.4", {"enableCDI": True, "cdiSpecDirs": usual}, ""),
        ("2.1.4", {"enableCDI": True, "cdiSpecDirs": ["/run/cdi/"]}, ""),
        ("1.6.9-with-patches", {"enableCDI": True, "cdiSpecDirs": usual}, ""),
        ("2.3.0", {"cdiSpecDirs": usual}, ""),
        ("1.6.9", {"cdiSpecDirs": usual}, "this node has containerd 1.6.9; upgrade it"),
        ("2.1.4", {"enableCDI": "perhaps", "cdiSpecDirs": 7}, ""),
    ]
    for number, (version, config, refusal) in enumerate(cases):
        socket = short_tmp / f"{number}.sock"
        with subtests.test(version=version, config=config):
            async with StandInRuntime(socket, version=version, config=config):
                runtime = ContainerRuntime(socket, timeout_s=60)
                if refusal:
                    with pytest.raises(ConfigError, match=refusal):
                        await runtime.require_cdi(CDI_DIR)
                else:
                    await runtime.require_cdi(CDI_DIR)
                await runtime.close()


async def test_a_runtime_that_hangs_costs_its_timeout_and_no_more(short_tmp: Path) -> None:
    async with StandInRuntime(short_tmp / "cri.sock", RuntimeBehaviour.HANGING):
        runtime = ContainerRuntime(short_tmp / "cri.sock", timeout_s=0.2)
        took = []
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(RuntimeApiError, match=r"deadline_exceeded.*--container-runtime-endpoint"):
                await runtime.running(UID)
            took.append(time.monotonic() - began)
        assert min(took) < 2, "best of three, because the machine may be busy with something else"
        await runtime.close()


async def test_without_a_runtime_or_its_protocol_there_is_one_sentence(short_tmp: Path) -> None:
    runtime = ContainerRuntime(short_tmp / "cri.sock", timeout_s=60)
    with pytest.raises(RuntimeApiError, match=r"cri\.sock answered unavailable"):
        await runtime.running(UID)
    await runtime.close()
    # At another address: gRPC waits before it tries one again that did not answer, for every caller.
    async with StandInRuntime(short_tmp / "there.sock") as fake:
        runtime = ContainerRuntime(short_tmp / "there.sock", timeout_s=60)
        assert await runtime.pid("nobody") is None
        fake.manner = RuntimeBehaviour.REFUSING
        with pytest.raises(RuntimeApiError, match="answered unimplemented: unknown service"):
            await runtime.running(UID)
        fake.manner = RuntimeBehaviour.BABBLING
        with pytest.raises(RuntimeApiError, match="gave an answer that is not CRI v1"):
            await runtime.running(UID)
        await runtime.close()
