"""The files of gpu-manager's client: found where it looks, kept fresh, gone at the next start."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError
from deviceplugin.gpu_manager.client_files import ClientFiles, encode_pids
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from tests.gpu_manager.client_reader import read_pids

GRANT = GrantId("g-0001")


@pytest.fixture
def clients(tmp_path: Path) -> ClientFiles:
    SharedState(tmp_path).prepare(GRANT, {GpuUuid("GPU-a")})
    return ClientFiles(GrantDirectories(tmp_path))


def found(base: Path) -> dict[str, bytes]:
    here = base / GRANT
    return {
        str(path.relative_to(here)): path.read_bytes()
        for path in here.rglob("*.config")
        if path.name in ("vcuda.config", "pids.config")
    }


def test_a_client_finds_its_files_under_its_name_and_at_the_top(clients: ClientFiles, tmp_path: Path) -> None:
    assert not clients.is_registered(GRANT)
    clients.register(GRANT, "id-1", b"limits")
    clients.show_processes(GRANT, [300, 7, 300])
    pids = (7).to_bytes(4, "little") + (300).to_bytes(4, "little")
    assert found(tmp_path) == {
        "vcuda.config": b"limits",
        "id-1/vcuda.config": b"limits",
        "pids.config": pids,
        "id-1/pids.config": pids,
    }
    assert clients.is_registered(GRANT)


def test_changed_limits_reach_every_place(clients: ClientFiles, tmp_path: Path) -> None:
    clients.register(GRANT, "id-1", b"old")
    clients.show_processes(GRANT, [])
    clients.limit(GRANT, b"new")
    assert found(tmp_path)["id-1/vcuda.config"] == b"new"


def test_no_name_takes_the_place_of_our_own_files(clients: ClientFiles, tmp_path: Path) -> None:
    (tmp_path / GRANT / "limits").write_bytes(b"ours")
    before = set((tmp_path / GRANT).iterdir())
    for name in ("state", "gpus", "", "limits", "vcuda.config", "pids.config", "vcuda.sock"):
        clients.register(GRANT, name, b"limits")
        clients.show_processes(GRANT, [1])
        assert found(tmp_path).keys() == {"vcuda.config", "pids.config"}, name
        made = {path.name for path in set((tmp_path / GRANT).iterdir()) - before}
        assert made == {"vcuda.config", "pids.config"}, name
        assert (tmp_path / GRANT / "limits").read_bytes() == b"ours", name


def test_a_tenant_makes_no_more_than_a_few_folders(clients: ClientFiles, tmp_path: Path) -> None:
    for number in range(50):
        clients.register(GRANT, f"id-{number}", b"limits")
    assert len(list((tmp_path / GRANT).glob("id-*"))) == 4


def test_the_next_start_begins_without_them(clients: ClientFiles, tmp_path: Path) -> None:
    clients.register(GRANT, "id-1", b"limits")
    clients.show_processes(GRANT, [1])
    clients.forget(GRANT)
    assert found(tmp_path) == {"vcuda.config": b"limits"}
    assert not clients.is_registered(GRANT)
    assert {path.name for path in (tmp_path / GRANT).iterdir() if path.is_dir()} == {"state", "gpus"}


@given(st.lists(st.integers(1, 2**22), max_size=1500))
def test_the_array_is_one_that_its_reader_can_search(pids: list[int]) -> None:
    data = encode_pids(pids)
    shown = read_pids(data)
    assert len(data) == 4 * len(shown) <= 4096
    assert list(shown) == sorted(set(pids))[:1024]


def test_what_cannot_be_forgotten_is_said(clients: ClientFiles, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / GRANT)
    (tmp_path / GRANT).touch()
    with pytest.raises(ContainerError, match=r"pids\.config could not be removed: .*; check the disk"):
        clients.forget(GRANT)
