"""Finished trees: swapped by one rename, kept while a container may use them, and mended after whatever happened."""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from deviceplugin.container.driver_mirror.plan import EMPTY, FLAVOURS, Entry, FileEntry, LinkEntry, MirrorPlan
from deviceplugin.container.driver_mirror.search import identity_of
from deviceplugin.container.driver_mirror.trees import Links, Trees
from deviceplugin.errors import ContainerError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "vdriver"


@pytest.fixture
def trees(base: Path) -> Trees:
    made = Trees(base)
    made.open()
    return made


def never() -> bool:
    return False


def plan(tmp_path: Path, name: str) -> MirrorPlan:
    """One file and a link to it in each flavour."""
    source = tmp_path / "driver" / name
    if not source.exists():
        source.parent.mkdir(exist_ok=True)
        source.write_text(name)
    entries: dict[PurePosixPath, Entry] = {}
    for flavour in FLAVOURS:
        entries[PurePosixPath(flavour, "lib64", name)] = FileEntry(source, identity_of(source))
        entries[PurePosixPath(flavour, "lib64/libcuda.so.1")] = LinkEntry(name)
    return MirrorPlan(entries, driver=name)


def content(base: Path) -> set[str]:
    """What a new container of each flavour would find."""
    return {(base / flavour / "lib64/libcuda.so.1").read_text() for flavour in FLAVOURS}


def test_the_names_lead_somewhere_from_the_first_moment(base: Path, trees: Trees) -> None:
    for flavour in FLAVOURS:
        assert sorted(path.name for path in (base / flavour).iterdir()) == ["bin", "lib", "lib64"]
    assert trees.current == base / ".trees" / EMPTY.key


def test_everything_can_be_read_by_everybody_whatever_the_umask(tmp_path: Path, base: Path) -> None:
    before = os.umask(0o077)
    try:
        trees = Trees(base)
        trees.open()
        trees.adopt(plan(tmp_path, "one"), stopped=never)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o755 for path in base.rglob("*") if path.is_dir()} == {0o755}


def test_a_plan_becomes_the_current_tree_once(tmp_path: Path, base: Path, trees: Trees) -> None:
    assert trees.adopt(plan(tmp_path, "one"), stopped=never)
    assert content(base) == {"one"}
    inode = (base / "nvidia/lib64/one").stat().st_ino
    assert not trees.adopt(plan(tmp_path, "one"), stopped=never)
    assert (base / "nvidia/lib64/one").stat().st_ino == inode


def test_another_agent_finds_the_tree_of_the_one_before(tmp_path: Path, base: Path, trees: Trees) -> None:
    trees.adopt(plan(tmp_path, "one"), stopped=never)
    again = Trees(base)
    again.open()
    assert content(base) == {"one"}
    assert not again.adopt(plan(tmp_path, "one"), stopped=never)


def test_both_flavours_change_at_once_and_readers_always_find_one_whole_tree(
    tmp_path: Path, base: Path, trees: Trees
) -> None:
    plans = [plan(tmp_path, name) for name in ("one", "two", "three")]
    trees.adopt(plans[0], stopped=never)
    done, seen, broken = threading.Event(), set[str](), list[str]()

    def mount() -> None:
        """As a runtime: the links are followed once, and then the tree itself is used."""
        while not done.is_set():
            source = (base / "nvidia").resolve()
            names = {path.name for path in (source / "lib64").iterdir()}
            found = (source / "lib64/libcuda.so.1").read_text()
            if names != {"libcuda.so.1", found}:
                broken.append(str(names))
            seen.add(found)

    reader = threading.Thread(target=mount)
    reader.start()
    for turn in range(90):
        trees.adopt(plans[turn % 3], stopped=never)
    done.set()
    reader.join()
    assert broken == []
    assert len(seen) > 1
    assert seen <= {"one", "two", "three"}


@pytest.mark.parametrize("exchanged", [True, False], ids=["in one step", "where the system cannot"])
def test_directories_of_an_earlier_agent_make_way(
    tmp_path: Path, base: Path, exchanged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in them may be mounted still, so they are set aside; empty ones go."""
    if not exchanged:
        monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    (base / "nvidia/lib64").mkdir(parents=True)
    (base / "nvidia/lib64/libcuda.so.1").write_text("gpu-manager")
    (base / "origin").mkdir()
    trees = Trees(base)
    trees.open()
    trees.adopt(plan(tmp_path, "one"), stopped=never)
    assert content(base) == {"one"}
    assert (base / "nvidia.before-1/lib64/libcuda.so.1").read_text() == "gpu-manager"
    assert sorted(path.name for path in base.iterdir() if not path.name.startswith(".")) == [
        "nvidia",
        "nvidia.before-1",
        "origin",
    ]


def test_a_second_directory_is_set_aside_beside_the_first(base: Path) -> None:
    base.mkdir()
    for turn in (1, 2):
        (base / "nvidia").unlink(missing_ok=True)
        (base / "nvidia").mkdir()
        (base / "nvidia/file").write_text(str(turn))
        Links(base).point("nvidia", "elsewhere")
    assert [(base / f"nvidia.before-{turn}/file").read_text() for turn in (1, 2)] == ["1", "2"]


def test_the_interposer_is_copied_and_has_one_inode_for_all_its_names(tmp_path: Path, base: Path, trees: Trees) -> None:
    """Two names of one image: a program that opens both must not get it twice."""
    source = tmp_path / "libcuda.so.1"
    source.write_text("ours")
    digest = "d4212f2ccb7ad449e3aeb4c3c4b6d9c3f7ed5a0ebe1e6cd4a6c80db3b26b9ffa"
    names = [PurePosixPath("nvidia/lib64", name) for name in ("libcuda.so", "libcuda.so.1")]
    with pytest.raises(ContainerError, match=r"libcuda\.so\.1 changed while it was put into the driver mirror"):
        trees.adopt(MirrorPlan({names[0]: FileEntry(source, digest, is_interposer=True)}), stopped=never)
    digest = hashlib.sha256(b"ours").hexdigest()
    trees.adopt(MirrorPlan({name: FileEntry(source, digest, is_interposer=True) for name in names}), stopped=never)
    stats = [(base / name).lstat() for name in names]
    assert len({each.st_ino for each in stats} - {source.stat().st_ino}) == 1
    assert stats[0].st_nlink == 2


def test_a_driver_that_changes_while_it_is_mirrored_is_looked_at_again(
    tmp_path: Path, base: Path, trees: Trees
) -> None:
    trees.adopt(plan(tmp_path, "one"), stopped=never)
    wanted = plan(tmp_path, "two")
    fresh = tmp_path / "fresh"
    fresh.write_text("newer")
    fresh.replace(tmp_path / "driver/two")
    with pytest.raises(
        ContainerError, match=r"driver/two changed while it was put into the driver mirror; the agent tries again"
    ):
        trees.adopt(wanted, stopped=never)
    assert content(base) == {"one"}
    assert trees.adopt(plan(tmp_path, "two"), stopped=never)
    assert content(base) == {"newer"}


def test_an_agent_that_ends_gives_up_a_build(tmp_path: Path, base: Path, trees: Trees) -> None:
    trees.adopt(plan(tmp_path, "one"), stopped=never)
    with pytest.raises(ContainerError, match="not finished, because the agent stops"):
        trees.adopt(plan(tmp_path, "two"), stopped=lambda: True)
    assert content(base) == {"one"}
    Trees(base).open()
    assert not list((base / ".trees").glob(".new-*"))


def test_a_corrupted_tree_is_built_again_beside_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    wanted = plan(tmp_path, "one")
    for spoil in ("delete", "shorten", "directory", "manifest"):
        with subtests.test(spoil=spoil):
            trees, again = Trees(tmp_path / spoil), Trees(tmp_path / spoil)
            trees.open()
            trees.adopt(wanted, stopped=never)
            corrupted = trees.current
            assert corrupted is not None
            file = corrupted / "origin/lib64/one"
            file.unlink()
            if spoil == "shorten":
                file.write_text("o")
            if spoil == "directory":
                file.mkdir()
            if spoil == "manifest":
                (corrupted / "manifest.json").write_bytes(b"{")
            again.open()
            assert again.adopt(wanted, stopped=never)
            assert again.current == corrupted.with_name(f"{wanted.key}-2")
            assert content(tmp_path / spoil) == {"one"}


def test_where_the_current_tree_is_gone_the_previous_one_serves(tmp_path: Path, base: Path, trees: Trees) -> None:
    for name in ("one", "two"):
        trees.adopt(plan(tmp_path, name), stopped=never)
    current = trees.current
    assert current is not None
    shutil.rmtree(current)
    again = Trees(base)
    again.open()
    assert content(base) == {"one"}


def stand(base: Path) -> Iterator[str]:
    yield from (path.name for path in (base / ".trees").iterdir() if not path.name.startswith("."))


def test_an_old_tree_stays_until_every_grant_that_lived_then_has_ended(
    tmp_path: Path, base: Path, trees: Trees
) -> None:
    plans = {name: plan(tmp_path, name) for name in ("one", "two", "three", "four")}
    keys = {name: each.key for name, each in plans.items()}
    trees.adopt(plans["one"], stopped=never)
    assert trees.collect({"g-1"}) == ()
    trees.adopt(plans["two"], stopped=never)
    assert trees.collect({"g-1", "g-2"}) == (), "g-1 may have mounted it"
    trees.adopt(plans["three"], stopped=never)
    assert trees.collect({"g-1", "g-2", "g-3"}) == ()
    trees.adopt(plans["four"], stopped=never)
    assert set(stand(base)) == {EMPTY.key, *keys.values()}
    assert set(trees.collect({"g-2", "g-3"})) == {EMPTY.key}, "g-2 was there when the first tree was replaced"
    assert set(trees.collect({"g-3"})) == {keys["one"]}
    assert set(trees.collect({"g-9"})) == {keys["two"]}
    assert trees.collect(set()) == ()
    assert set(stand(base)) == {keys["three"], keys["four"]}, "the current one and the one before it"
    assert content(base) == {"four"}
    assert not [path for path in (base / ".trees").iterdir() if path.name.startswith((".gone", ".new"))]


def test_who_held_a_tree_is_remembered_over_restarts_and_asked_again_where_it_was_lost(
    tmp_path: Path, base: Path, trees: Trees
) -> None:
    one, two, three = (plan(tmp_path, name) for name in ("one", "two", "three"))
    for each in (one, two, three):
        trees.adopt(each, stopped=never)
    trees.collect({"g-1"})
    again = Trees(base)
    again.open()
    assert again.collect({"g-1", "g-2"}) == ()
    assert set(again.collect({"g-2"})) == {EMPTY.key, one.key}, "g-2 came later"

    trees.adopt(plan(tmp_path, "four"), stopped=never)
    (base / f".trees/.holders-{two.key}").write_bytes(b"garbage")
    assert trees.collect({"g-3"}) == (), "nobody knows any more that g-3 came later"
    assert trees.collect(set()) == (two.key,)


def test_a_tree_that_comes_back_is_held_by_who_starts_then(tmp_path: Path, base: Path, trees: Trees) -> None:
    """A driver that is taken back: its tree is current again, and new containers mount it."""
    one, two, three = (plan(tmp_path, name) for name in ("one", "two", "three"))
    trees.adopt(one, stopped=never)
    trees.adopt(two, stopped=never)
    trees.collect(set())
    trees.adopt(one, stopped=never)
    trees.adopt(two, stopped=never)
    trees.adopt(three, stopped=never)
    trees.collect({"g-1"})
    assert one.key in set(stand(base))
    assert trees.collect(set()) == (one.key,)


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, base: Path) -> None:
    base.write_text("a file in the way")
    with pytest.raises(ContainerError, match=r"driver mirror .*vdriver could not be changed: .*; check the disk and"):
        Trees(base).open()


def test_a_container_in_an_old_tree_keeps_all_of_it(tmp_path: Path, base: Path, trees: Trees) -> None:
    """A mount holds the directory itself, as a working directory does."""
    trees.adopt(plan(tmp_path, "one"), stopped=never)
    inside = os.open((base / "nvidia").resolve(), os.O_RDONLY)
    try:
        trees.adopt(plan(tmp_path, "two"), stopped=never)
        trees.adopt(plan(tmp_path, "three"), stopped=never)
        trees.collect({"g-1"})
        opened = os.open("lib64/libcuda.so.1", os.O_RDONLY, dir_fd=inside)
        assert os.read(opened, 10) == b"one"
        os.close(opened)
    finally:
        os.close(inside)
