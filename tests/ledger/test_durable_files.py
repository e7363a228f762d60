"""A file is replaced in one step, also by another thread than began it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deviceplugin.ledger.durable_files import finished_by_caller, replace_file


def test_a_file_is_replaced_and_its_directory_made(short_tmp: Path) -> None:
    path = short_tmp / "made" / "file"
    for data in (b"one", b"two"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_the_caller_finishes_files_in_any_thread_and_until_then_readers_see_the_old_ones(short_tmp: Path) -> None:
    paths = [short_tmp / "a" / "file", short_tmp / "b" / "file"]
    replace_file(paths[0], b"old")
    with finished_by_caller() as unfinished:
        for path in paths:
            replace_file(path, b"new")
    assert (paths[0].read_bytes(), paths[1].exists()) == (b"old", False)
    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(finish) for finish in unfinished]:
            each.result()
    assert [path.read_bytes() for path in paths] == [b"new", b"new"]
    replace_file(paths[0], b"newer")
    assert paths[0].read_bytes() == b"newer", "the block has ended"


def test_what_cannot_be_finished_is_an_error_of_who_finishes(short_tmp: Path) -> None:
    path = short_tmp / "file"
    with finished_by_caller() as unfinished:
        replace_file(path, b"new")
    path.mkdir()
    (finish,) = unfinished
    with pytest.raises(IsADirectoryError):
        finish()
