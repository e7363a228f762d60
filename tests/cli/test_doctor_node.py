"""`vcuda doctor node` on the emulated driver, with a stand-in kubelet, runtime and API server, each broken for real."""

import asyncio
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from deviceplugin.cli.doctor.findings import Check, CheckOutcome, CheckResult, examine
from deviceplugin.cli.doctor.node import CHECKS, RIGHTS
from sandbox.agent import AgentCommand
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.emulated_gpus import REPOSITORY, EmulatedGpus
from sandbox.gpunode import EIGHT_GPUS, agent_command
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.runtime import RuntimeBehaviour, StandInRuntime
from tests.cli.doctor_cluster import own_pod
from tests.daemonset import manifests

Json = dict[str, Any]
TOKEN = "stand-in-token"
NAMES = [each.name for each in CHECKS]


@dataclass
class Api:
    """What the agent asks of an API server before it runs."""

    node: Json | None = field(default_factory=lambda: {"metadata": {"name": "node-1"}, "status": {"allocatable": {}}})
    may_not: tuple[str, ...] = ()
    pods: list[Json] = field(default_factory=lambda: [own_pod("vcuda-agent-1", "vcuda-agent", node="node-1")])

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.1"})
        if request.path == "/api/v1/nodes/node-1" and self.node is not None:
            return web.json_response(self.node)
        if request.path == "/api/v1/pods":
            assert request.query["fieldSelector"] == "spec.nodeName=node-1"
            return web.json_response({"items": self.pods})
        if request.path.endswith("/selfsubjectaccessreviews"):
            asked = (await request.json())["spec"]["resourceAttributes"]
            return web.json_response(
                {"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in self.may_not}}
            )
        return web.json_response({"message": "nodes not found"}, status=404)


@dataclass
class Node:
    """A node on which no agent runs."""

    home: Path
    command: AgentCommand
    kubelet: Kubelet
    gpus: EmulatedGpus
    api: Api
    runtime: StandInRuntime

    async def doctor(self, *flags: str) -> tuple[int, dict[str, Json]]:
        status, text = await self.run("-o", "json", *flags)
        document = json.loads(text)
        assert [each["check"] for each in document["checks"]] == NAMES
        return status, {each["check"]: each for each in document["checks"]}

    async def run(self, *flags: str) -> tuple[int, str]:
        program, agent, *own = self.command.arguments
        assert agent == "agent"
        process = await asyncio.create_subprocess_exec(
            *(program, "doctor", "node", *own, *flags),
            env=self.command.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, told = await process.communicate()
        assert told == b"", told.decode()
        assert process.returncode is not None
        return process.returncode, out.decode()


@asynccontextmanager
async def node(home: Path, **options: Any) -> AsyncIterator[Node]:
    api, gpus = Api(), EmulatedGpus(EIGHT_GPUS, home / "emulator")
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(_app(api), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        kubelet = await stack.enter_async_context(Kubelet(KubeletOptions(home / "kubelet", token=TOKEN, **options)))
        kubeconfig = write_kubeconfig(home / "kubeconfig", url, token=TOKEN)
        command = agent_command(home, kubelet, gpus, kubeconfig=kubeconfig)
        runtime = await stack.enter_async_context(StandInRuntime(home / "cri.sock", images={"vcuda:1"}))
        yield Node(home, command, kubelet, gpus, api, runtime)


def _app(api: Api) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", api.answer)
    return app


def outcomes(found: dict[str, Json]) -> dict[str, str]:
    return {name: each["outcome"] for name, each in found.items()}


async def test_a_node_in_order_is_ok_line_by_line(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        before = sorted(map(str, short_tmp.rglob("*")))
        status, text = await here.run()
        after = sorted(map(str, short_tmp.rglob("*")))
    lines = text.splitlines()
    assert status == 0, text
    wrong = [line for line in lines[:-1] if not line.startswith("ok ")]
    assert [line.split()[1] for line in wrong if not line.lstrip().startswith("->")] in (
        [],
        ["kubelet-checkpoint:"],  # kubelet writes it with its first pod
    ), text
    assert "8 × NVIDIA A100-SXM4-80GB" in text
    assert [each for each in after if each not in before and "emulator" not in each] == [], "nothing is left behind"


async def test_a_driver_that_is_missing_fails_the_start_unless_the_agent_waits_for_it(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        here.command.environment.pop("LD_LIBRARY_PATH")
        shutil.rmtree(short_tmp / "host/usr")
        shutil.rmtree(short_tmp / "host/proc")
        status, found = await here.doctor("--startup")
        assert (status, found["driver-module"]["outcome"], found["nvml"]["outcome"]) == (1, "failed", "failed")
        assert "below the driver root" in found["nvml"]["message"]
        assert found["libraries"]["outcome"] == "failed"
        assert found["gpu-modes"]["outcome"] == found["device-nodes"]["outcome"] == "skipped"
        status, found = await here.doctor("--startup", "--wait-for-driver=true")
        assert (status, found["driver-module"]["outcome"], found["nvml"]["outcome"]) == (0, "warning", "warning")
        assert (await here.run("--wait-for-driver=true"))[0] == 1, "the libraries count without --startup"


@pytest.mark.root
async def test_device_nodes_that_systemd_does_not_know_are_named(short_tmp: Path) -> None:
    """nvidia-container-toolkit#251, gpu-operator#485, nvidia-docker#1671: containers lose their GPUs at a reload."""
    async with node(short_tmp) as here:
        made = short_tmp / "host/dev/nvidia5"
        made.unlink()
        os.mknod(made, stat.S_IFCHR | 0o666, os.makedev(195, 5))
        _, found = await here.doctor()
        assert found["device-nodes"]["outcome"] == "warning"
        assert "/dev/char has no link for nvidia5: where runc lets systemd make" in found["device-nodes"]["message"]
        (short_tmp / "host/dev/char").mkdir()
        (short_tmp / "host/dev/char/195:5").symlink_to("../nvidia5")
        _, found = await here.doctor()
        assert found["device-nodes"]["outcome"] == "ok"


async def test_gpus_that_take_no_pods_and_lost_ones_are_named(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        here.gpus.command("mig", 2, "on")
        (short_tmp / "host/dev/nvidia5").unlink()
        (short_tmp / "host/proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 999.10.01\n")
        _, found = await here.doctor()
        assert found["gpu-modes"]["outcome"] == "warning"
        assert "1 GPU unavailable because of MIG mode: GPU 2" in found["gpu-modes"]["message"]
        assert found["device-nodes"]["outcome"] == "failed"
        assert found["device-nodes"]["message"].endswith("host/dev/nvidia5")
        assert "loaded kernel module of 999.10.01" in found["nvml"]["message"]
        here.gpus.lose(3)
        _, found = await here.doctor()
        assert (found["nvml"]["outcome"], "7 of 8 GPUs answer" in found["nvml"]["message"]) == ("failed", True)


async def test_a_kubelet_that_died_and_a_runtime_that_hangs(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        here.runtime.manner = RuntimeBehaviour.REFUSING
        here.kubelet.options.checkpoint_path.write_text("{ not JSON")
        _, found = await here.doctor()
        assert outcomes(found)["container-runtime"] == "warning"
        assert (found["kubelet-checkpoint"]["outcome"], found["kubelet-directory"]["outcome"]) == ("failed", "ok")
        await here.kubelet.stop()
        status, found = await here.doctor("--startup")
        assert (status, found["kubelet-directory"]["outcome"]) == (0, "failed"), (
            "the agent starts and waits for kubelet"
        )
        assert "does not listen on" in found["kubelet-directory"]["message"]
        assert outcomes(found)["pod-resources"] == outcomes(found)["kubelet-pods"] == "warning"


async def _listen_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the caller goes."""
    await reader.read()
    writer.close()


async def test_a_kubelet_without_get_is_an_old_one_and_not_a_silent_one(short_tmp: Path) -> None:
    async with node(short_tmp, podresources_form="1.27") as here:
        _, found = await here.doctor()
    assert found["pod-resources"]["outcome"] == "ok"
    assert "has no Get" in found["pod-resources"]["message"]


async def test_a_kubelet_that_never_answers_and_a_runtime_that_hangs_end_the_checks_all_the_same(
    short_tmp: Path,
) -> None:
    async with node(short_tmp) as here:
        here.runtime.manner = RuntimeBehaviour.HANGING
        silent = await asyncio.start_server(_listen_only, "127.0.0.1", 0)
        async with silent:
            url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/pods"
            _, found = await here.doctor(f"--kubelet-pods-endpoint={url}")
        assert outcomes(found)["kubelet-pods"] == outcomes(found)["container-runtime"] == "warning"
        assert "no answer" in found["kubelet-pods"]["message"]


async def test_an_image_that_the_node_does_not_have(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        here.runtime.images.clear()
        found = (await here.doctor())[1]["images"]
        assert (found["outcome"], found["message"]) == (
            "warning",
            "the container runtime does not have vcuda:1; a pod that starts pulls it first",
        )
        away = own_pod("agent", "vcuda-agent", node="node-1", waiting="ErrImagePull", says="connection refused")
        here.api.pods = [away]
        status, found = await here.doctor()
        assert (status, found["images"]["outcome"]) == (1, "failed")
        assert found["images"]["message"].endswith("have vcuda:1, and kubelet says ErrImagePull: connection refused")
        assert "crictl pull vcuda:1" in found["images"]["advice"]
        assert (await here.doctor("--startup"))[0] == 0, "the agent that asks runs"
        here.runtime.manner = RuntimeBehaviour.REFUSING
        assert (await here.doctor())[1]["images"]["outcome"] == "warning"
        here.api.pods = []
        found = (await here.doctor("--container-runtime-endpoint="))[1]
        assert (found["images"]["outcome"], found["container-runtime"]["outcome"]) == ("skipped", "skipped")
        assert (await here.doctor())[1]["images"][
            "message"
        ] == "this node has no pod of vcuda yet, so no image is known"


async def test_a_file_that_the_caller_may_not_see_is_a_failed_check() -> None:
    async def look(_: None) -> CheckResult:
        raise PermissionError(13, "Permission denied", "/var/lib/kubelet")

    (found,) = [each async for each in examine([Check("one", look)], None)]
    assert (found.outcome, found.message) == (CheckOutcome.FAILED, "/var/lib/kubelet: Permission denied")


async def test_state_that_cannot_be_written(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        (short_tmp / "file").write_text("")
        away = (f"--device-plugin-path={short_tmp}/away/device-plugins", f"--kubelet-root={short_tmp}/away")
        status, found = await here.doctor("--startup", f"--checkpoint-path={short_tmp}/file/below", *away)
        assert (status, found["state-directory"]["outcome"]) == (1, "failed")
        assert "Not a directory" in found["state-directory"]["message"]
        assert outcomes(found)["kubelet-directory"] == "failed"
        assert outcomes(found)["kubelet-root"] == outcomes(found)["pod-resources"] == "warning"


@pytest.fixture
def mounted(short_tmp: Path) -> Iterator[Callable[[str], Path]]:
    made: list[Path] = []

    def mount(options: str) -> Path:
        path = short_tmp / f"m{len(made)}"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "vcuda-test", path], check=True)
        made.append(path)
        return path

    yield mount
    for path in made:
        subprocess.run(["umount", path], check=True)


@pytest.mark.root
async def test_file_systems_on_which_no_share_works(short_tmp: Path, mounted: Callable[[str], Path]) -> None:
    async with node(short_tmp) as here:
        for options, part in (("size=2g,noexec", "noexec"), ("size=8m", "only 8 MiB free")):
            status, found = await here.doctor("--startup", f"--driver-mirror-path={mounted(options)}/vdriver")
            assert (status, found["state-directory"]["outcome"]) == (1, "failed"), found
            assert part in found["state-directory"]["message"]


async def test_the_cluster_does_not_know_the_node_or_its_agent(short_tmp: Path) -> None:
    async with node(short_tmp) as here:
        here.api.may_not = ("patch nodes", "delete pods")
        assert here.api.node is not None
        here.api.node["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
        _, found = await here.doctor()
        assert "may not delete pods, patch nodes" in found["rights"]["message"]
        assert (found["other-plugins"]["outcome"], "nvidia.com/gpu" in found["other-plugins"]["message"]) == (
            "failed",
            True,
        )
        here.api.node = None
        assert (await here.doctor())[1]["node"]["outcome"] == "failed"
        (short_tmp / "kubeconfig").write_text("{[")
        status, found = await here.doctor("--startup")
        assert (status, found["credentials"]["outcome"]) == (1, "failed")
        assert {found[name]["outcome"] for name in ("api-server", "node", "rights", "other-plugins")} == {"skipped"}


def test_the_rights_are_those_of_the_chart() -> None:
    role = manifests.base()["ClusterRole"]
    granted = {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == {(verb, f"{kind}/{below}" if below else kind) for verb, kind, below in RIGHTS}


def test_the_page_has_every_check_of_a_node() -> None:
    _, _, part = (REPOSITORY / "docs/how-to/doctor.md").read_text().partition("## On a node")
    assert re.findall(r"^\| `([a-z-]+)`", part, re.MULTILINE) == NAMES
    starred = re.findall(r"^\| `([a-z-]+)` \\\*", part, re.MULTILINE)
    assert starred == [each.name for each in CHECKS if each.to_start]
