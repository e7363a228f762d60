"""Grant directories: made early, filled late, swept when the grant is gone."""

import json
import threading
from pathlib import Path

import pytest

from deviceplugin.container.cdi import CdiSpecs
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.allocation import Mount

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")


def test_a_directory_exists_before_its_content(tmp_path: Path) -> None:
    directories = GrantDirectories(tmp_path / "vm")
    assert directories.prepare(ONE) == tmp_path / "vm" / "g-0001"
    assert list((tmp_path / "vm" / "g-0001").iterdir()) == []
    assert directories.prepare(ONE).is_dir()


def test_writing_says_whether_anything_changed(tmp_path: Path) -> None:
    directories = GrantDirectories(tmp_path)
    assert directories.write(ONE, "vcuda.config", b"old")
    assert not directories.write(ONE, "vcuda.config", b"old")
    assert directories.write(ONE, "vcuda.config", b"new")
    assert (tmp_path / "g-0001" / "vcuda.config").read_bytes() == b"new"
    assert [entry.name for entry in (tmp_path / "g-0001").iterdir()] == ["vcuda.config"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    directories = GrantDirectories(tmp_path)
    contents = {bytes([value]) * 8240 for value in range(4)}
    directories.write(ONE, "vcuda.config", bytes(8240))
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add((tmp_path / "g-0001" / "vcuda.config").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        directories.write(ONE, "vcuda.config", bytes([turn % 4]) * 8240)
    done.set()
    reader.join()
    assert seen
    assert seen <= contents


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "vm").write_text("a file in the way")
    with pytest.raises(ContainerError, match=r"directory .*vm could not be made: File exists"):
        GrantDirectories(tmp_path / "vm").prepare(ONE)


def test_a_cdi_file_names_one_device_with_all_its_edits(tmp_path: Path) -> None:
    specs = CdiSpecs(tmp_path / "cdi", kept=tmp_path / "kept", domain="tencent.com")
    specs.write(
        ONE,
        devices=(("/host/dev/nvidia3", "/dev/nvidia3"),),
        mounts=(Mount("/vm/g-0001", "/etc/vcuda"), Mount("/vm/g-0001/r", "/etc/vcuda/r", read_only=False)),
        env=(("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64"),),
    )
    assert json.loads((tmp_path / "cdi" / "vcuda-g-0001.json").read_text()) == {
        "cdiVersion": "0.6.0",
        "kind": "tencent.com/vcuda",
        "devices": [
            {
                "name": "g-0001",
                "containerEdits": {
                    "env": ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64"],
                    "deviceNodes": [{"hostPath": "/host/dev/nvidia3", "path": "/dev/nvidia3", "permissions": "rw"}],
                    "mounts": [
                        {
                            "hostPath": "/vm/g-0001",
                            "containerPath": "/etc/vcuda",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        },
                        {
                            "hostPath": "/vm/g-0001/r",
                            "containerPath": "/etc/vcuda/r",
                            "options": ["rw", "nosuid", "nodev", "bind"],
                        },
                    ],
                },
            }
        ],
    }


def test_cdi_files_of_ended_grants_go(tmp_path: Path) -> None:
    cdi = tmp_path / "cdi"
    specs = CdiSpecs(cdi, kept=tmp_path / "kept", domain="tencent.com")
    for grant in (ONE, TWO):
        specs.write(grant)
    (cdi / "nvidia.json").write_text("{}")
    specs.remove_all_but({TWO})
    assert sorted(entry.name for entry in cdi.iterdir()) == ["nvidia.json", "vcuda-g-0002.json"]
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == ["vcuda-g-0002.json"]


def test_cdi_files_come_back_after_a_reboot_emptied_their_directory(tmp_path: Path) -> None:
    cdi, specs = tmp_path / "cdi", specs_of_one_gpu(tmp_path)
    before = (cdi / "vcuda-g-0001.json").read_text()
    (cdi / "vcuda-g-0001.json").unlink()
    specs.restore({"GPU-a": "/dev/nvidia0"})
    assert (cdi / "vcuda-g-0001.json").read_text() == before


def test_cdi_files_follow_their_gpus_to_other_device_nodes(tmp_path: Path) -> None:
    """A runtime takes the device nodes of the file at each start of the container, without asking anybody."""
    cdi, specs = tmp_path / "cdi", specs_of_one_gpu(tmp_path)
    specs.restore({"GPU-a": "/dev/nvidia3", "GPU-b": "/dev/nvidia0"})
    for folder in (cdi, tmp_path / "kept"):
        (device,) = json.loads((folder / "vcuda-g-0001.json").read_text())["devices"]
        assert [(each["hostPath"], each["path"]) for each in device["containerEdits"]["deviceNodes"]] == [
            ("/host/dev/nvidia3", "/dev/nvidia3"),
            ("/host/dev/nvidiactl", "/dev/nvidiactl"),
        ]


def test_a_cdi_file_that_cannot_be_right_is_taken_away_and_the_others_follow(tmp_path: Path) -> None:
    cdi, specs = tmp_path / "cdi", specs_of_one_gpu(tmp_path)
    for name, text in {"0003": "{", "0004": "[]", "0005": '{"devices": []}', "0006": "\udcff"}.items():
        (cdi / f"vcuda-g-{name}.json").write_text("old")
        (tmp_path / "kept" / f"vcuda-g-{name}.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    specs.write(TWO, devices=(("/dev/nvidia1", "/dev/nvidia1"),), env=(("NVIDIA_VISIBLE_DEVICES", "GPU-gone"),))
    specs.restore({"GPU-a": "/dev/nvidia3"})
    assert [path.name for path in cdi.iterdir()] == ["vcuda-g-0001.json"]
    assert "/dev/nvidia3" in (cdi / "vcuda-g-0001.json").read_text()


def test_a_cdi_file_that_the_disk_refused_is_made_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """Without the file, the runtime starts no container, and no GPU may change for months."""
    cdi, specs = tmp_path / "cdi", specs_of_one_gpu(tmp_path)
    obstacle = cdi / ".vcuda-g-0001.json.new"
    obstacle.mkdir()
    assert not specs.restore({"GPU-a": "/dev/nvidia3"})
    assert not (cdi / "vcuda-g-0001.json").exists(), "better none than one of another GPU"
    obstacle.rmdir()
    assert specs.restore({"GPU-a": "/dev/nvidia3"})
    assert "/dev/nvidia3" in (cdi / "vcuda-g-0001.json").read_text()
    assert specs.restore({}), "a GPU that is gone does not come back by trying"


def specs_of_one_gpu(tmp_path: Path) -> CdiSpecs:
    specs = CdiSpecs(tmp_path / "cdi", kept=tmp_path / "kept", domain="tencent.com")
    devices = (("/host/dev/nvidia0", "/dev/nvidia0"), ("/host/dev/nvidiactl", "/dev/nvidiactl"))
    specs.write(ONE, devices=devices, env=(("A", "b"), ("NVIDIA_VISIBLE_DEVICES", "GPU-a")))
    return specs
