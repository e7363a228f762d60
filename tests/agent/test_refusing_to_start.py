"""What keeps the agent from running on a node with GPUs: one sentence that names it, and exit status 1."""

import asyncio
import itertools
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandbox.agent import AgentCommand, free_port
from sandbox.apiserver import ApiServer
from sandbox.emulated_gpus import EmulatedGpus
from sandbox.gpunode import EIGHT_GPUS, agent_command
from sandbox.kubelet import Kubelet, KubeletOptions
from tests.agent.harness import check_consistency, node_with_agent, run, share

Change = Callable[[AgentCommand, Path], AgentCommand]


def with_flags(**flags: str) -> Change:
    """`HOME` in a value is the node's directory."""

    def change(command: AgentCommand, home: Path) -> AgentCommand:
        given = (f"--{name.replace('_', '-')}={value.replace('HOME', str(home))}" for name, value in flags.items())
        return replace(command, arguments=(*command.arguments, *given))

    return change


def with_file(name: str, content: str, flag: str) -> Change:
    def change(command: AgentCommand, home: Path) -> AgentCommand:
        (home / name).write_text(content)
        return with_flags(**{flag: f"HOME/{name}"})(command, home)

    return change


def with_a_directory_for_a_journal(command: AgentCommand, home: Path) -> AgentCommand:
    (home / "journal" / "ledger.journal").mkdir(parents=True)
    return command


def with_a_journal_of_a_later_version(command: AgentCommand, home: Path) -> AgentCommand:
    (home / "journal").mkdir()
    text = b"vcuda-ledger 99"
    (home / "journal" / "ledger.journal").write_bytes(b"%s %08x\n" % (text, zlib.crc32(text)))
    return command


async def ended(command: AgentCommand) -> tuple[int | None, list[str]]:
    """Its exit status, and the lines for people: those that are no log entries."""
    process = await asyncio.create_subprocess_exec(
        *command.arguments, env=command.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, told = await process.communicate()
    assert out == b""
    assert b"Traceback" not in told
    return process.returncode, [line for line in told.decode().splitlines() if not line.startswith("{")]


def lonely_command(home: Path) -> AgentCommand:
    """Neither kubelet nor an API server runs: every refusal comes before they are needed."""
    kubelet = Kubelet(KubeletOptions(root=home / "kubelet", pods_port=1))
    gpus = EmulatedGpus(EIGHT_GPUS, home / "emulator")
    return agent_command(home, kubelet, gpus, kubeconfig=ApiServer(port=1).kubeconfig(home / "kubeconfig"))


LONG = "d" * 90
UNKNOWN_KEY = "apiVersion: vcuda/v1\nkind: AgentConfig\nspec: {shareMod: true}\n"
CASES: dict[str, tuple[Change, list[str]]] = {
    "long plugin path": (with_flags(device_plugin_path=f"HOME/{LONG}"), ["vcore.sock", "Linux allows 107"]),
    "long display socket": (with_flags(display_socket=f"HOME/{LONG}/d.sock"), ["--display-socket", "107"]),
    "no kubeconfig": (with_flags(kubeconfig="HOME/nothing"), ["HOME/nothing", "kubeconfig"]),
    "garbage as kubeconfig": (with_file("kc", "{[garbage", "kubeconfig"), ["HOME/kc", "kubeconfig"]),
    "unknown key in the file": (
        with_file("c", UNKNOWN_KEY, "config"),
        ["HOME/c: $.spec.shareMod is not a known key; did you mean shareMode?"],
    ),
    "directory as journal": (with_a_directory_for_a_journal, ["HOME/journal/ledger.journal"]),
    "journal of tomorrow": (with_a_journal_of_a_later_version, ["format 99", "newer agent"]),
}


async def fault(home: Path, change: Change, words: list[str]) -> str:
    """What is wrong with how it refuses; empty where nothing is."""
    home.mkdir()
    status, lines = await ended(change(lonely_command(home), home))
    wanted = [word.replace("HOME", str(home)) for word in words]
    good = len(lines) == 1 and lines[0].startswith("vcuda: ") and all(word in lines[0] for word in wanted)
    return "" if good and status == 1 else f"exit {status}: {lines}, wanted {wanted}"


async def test_it_says_what_is_wrong_in_one_line(short_tmp: Path) -> None:
    """All cases side by side, for each of them costs the start of a process."""
    homes = (short_tmp / str(number) for number in itertools.count())
    found = await asyncio.gather(*(fault(home, *case) for home, case in zip(homes, CASES.values(), strict=False)))
    assert {name: said for name, said in zip(CASES, found, strict=True) if said} == {}


async def test_a_bad_profile_is_named_by_the_emulated_driver_and_ends_the_agent(short_tmp: Path) -> None:
    command = lonely_command(short_tmp)
    (profile := short_tmp / "bad.profile").write_text('{"gpus": 7}')
    named = {"VCUDA_EMULATOR_PROFILE": str(profile)}
    status, (of_driver, of_agent) = await ended(replace(command, environment={**command.environment, **named}))
    assert status == 1
    assert of_driver.startswith(f"vcuda-emulator: {profile}:")
    assert of_agent.startswith("vcuda: nvmlInit failed")


async def test_a_second_agent_names_the_first_and_leaves_it_alone(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp) as node:
        await run(node, share("before"))
        arguments = (*node.agent.command.arguments, f"--query-port={free_port()}")
        status, lines = await ended(replace(node.agent.command, arguments=arguments))
        assert status == 1
        (sentence,) = lines
        assert f"another vcuda agent (process {node.agent.pid}) runs on this node" in sentence
        assert str(node.home / "journal") in sentence
        assert os.path.lexists(node.home / "display.sock")
        await run(node, share("after"))
        await check_consistency(node)
