"""The files of a claim's grant are there before its CDI name is answered, or nothing is."""

from pathlib import Path, PurePosixPath
from typing import cast

import pytest

from deviceplugin.agent.claims import AgentClaimFiles
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.errors import ContainerError
from deviceplugin.kubelet.allocate_answer import Answer, HostLayout
from deviceplugin.kubelet.allocate_context import Gpus
from deviceplugin.ledger.durable_files import replace_file
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import Gpu
from tests.ledger.makers import grant, inventory


class HereAlready:
    """GPUs whose numbers are known."""

    async def settled(self) -> None:
        pass

    def located(self, gpu: Gpu) -> Gpu:
        return gpu


class Files:
    """Two CDI files; `obstacle`: what goes wrong."""

    def __init__(self, home: Path, obstacle: str = "") -> None:
        self.paths = [home / "kept" / "cdi", home / "cdi" / "cdi"]
        self._obstacle = obstacle

    def describe(self, _: Grant, answer: Answer) -> None:
        for path in self.paths:
            replace_file(path, answer.cdi_devices[0].encode())
        if self._obstacle == "directory":
            self.paths[1].parent.rename(self.paths[1].parent.with_name("moved"))

    def ready(self, _: Grant) -> None:
        if self._obstacle == "file":
            raise ContainerError("the disk is full")


@pytest.mark.parametrize(
    ("obstacle", "error"), [("file", "the disk is full"), ("directory", "the CDI file of grant g-a")]
)
async def test_a_name_is_answered_when_both_cdi_files_are_in_place(short_tmp: Path, obstacle: str, error: str) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        replace_file(short_tmp / "dev" / name, b"")
    layout = HostLayout(PurePosixPath("/vm"), PurePosixPath("/mirror"), device_root=PurePosixPath(short_tmp))

    def made(files: Files) -> AgentClaimFiles:
        return AgentClaimFiles(cast("AgentFiles", files), layout, lambda: inventory(1), cast("Gpus", HereAlready()))

    files = Files(short_tmp)
    name = await made(files).ready(grant("a"), None)
    assert [path.read_text() for path in files.paths] == [name, name]
    with pytest.raises(ContainerError, match=error):
        await made(Files(short_tmp, obstacle)).ready(grant("a"), None)
