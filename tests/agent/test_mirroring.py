"""The loop that keeps the driver mirror: when it looks, what it says, and that nothing which fails ends the agent."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deviceplugin.agent.mirroring import Mirroring, driver_mirror
from deviceplugin.config.agent import DriverSettings
from deviceplugin.observe.metrics import AgentMetrics
from sandbox.driver_root import VERSION, DriverRoot, make_driver_root, make_interposers
from tests.waiting import in_background, until

NEWER = "590.10"


@dataclass(frozen=True, slots=True)
class Scene:
    """A node whose mirror is kept by a `Mirroring`."""

    driver: DriverRoot
    settings: DriverSettings
    metrics: AgentMetrics
    mirroring: Mirroring

    @property
    def base(self) -> Path:
        return self.settings.mirror_path

    def version(self) -> str:
        return (self.base / "origin/lib64/libcuda.so.1").resolve().name.partition(".so.")[2]

    def trees(self) -> int:
        return len([path for path in (self.base / ".trees").iterdir() if path.is_dir()])


def scene(home: Path, *, living: Callable[[], Collection[str] | None] = lambda: None, period_s: float = 3600) -> Scene:
    driver = make_driver_root(home / "host")
    settings = DriverSettings(
        root=driver.path,
        mirror_path=home / "vdriver",
        library_path=make_interposers(home / "ours"),
        version_file=driver.version_file,
    )
    mirror = driver_mirror(settings, driver_version=lambda: VERSION)
    mirror.open()
    metrics = AgentMetrics(version="1")
    return Scene(driver, settings, metrics, Mirroring(mirror, metrics, living=living, period_s=period_s))


def enforceable(metrics: AgentMetrics) -> bool:
    return "\nvcuda_shares_enforceable 1.0\n" in metrics.render()[0].decode()


async def test_a_look_builds_the_mirror_and_says_so_once(tmp_path: Path) -> None:
    made = scene(tmp_path)
    with capture_logs() as said:
        await made.mirroring.look()
        await made.mirroring.look()
    assert made.version() == VERSION
    assert [(entry["event"], entry["driver"]) for entry in said] == [("mirror_built", VERSION)]
    assert enforceable(made.metrics)


async def test_a_sign_of_another_driver_is_followed_at_once(tmp_path: Path) -> None:
    made = scene(tmp_path)
    async with in_background(made.mirroring.run()):
        made.driver.install(NEWER)
        made.driver.load(NEWER)
        made.mirroring.soon()
        await until(lambda: made.version() == NEWER)


async def test_it_looks_at_each_period(tmp_path: Path) -> None:
    made = scene(tmp_path, period_s=0.05)
    async with in_background(made.mirroring.run()):
        await until(lambda: made.version() == VERSION)
        made.driver.install(NEWER)
        made.driver.load(NEWER)
        await until(lambda: made.version() == NEWER)


async def test_where_the_mirror_cannot_be_changed_that_is_said_once_and_tried_again(tmp_path: Path) -> None:
    made = scene(tmp_path)
    trees = made.base / ".trees"
    trees.rename(tmp_path / "away")
    trees.touch()
    with capture_logs() as said:
        await made.mirroring.look()
        await made.mirroring.look()
    (entry,) = said
    assert entry["event"] == "mirror_update_failed"
    assert entry["error"].startswith(f"driver mirror {made.base} could not be changed: ")
    assert not enforceable(made.metrics)

    trees.unlink()
    (tmp_path / "away").rename(trees)
    with capture_logs() as said:
        await made.mirroring.look()
    built, missed = said
    assert (built["event"], missed["event"]) == ("mirror_built", "mirror_incomplete")
    assert missed["error"] == f"files of the driver mirror {made.base} were missing and have been made again"
    assert enforceable(made.metrics)


async def test_an_unexpected_failure_of_a_check_is_logged_and_retried(tmp_path: Path) -> None:
    made = scene(tmp_path)
    answers = iter([RuntimeError("what is this?")])

    def version() -> str:
        for error in answers:
            raise error
        return VERSION

    made.driver.version_file.unlink()
    mirror = driver_mirror(made.settings, driver_version=version)
    mirror.open()
    mirroring = Mirroring(mirror, made.metrics, living=lambda: None, period_s=0.01)
    with capture_logs() as said:
        async with in_background(mirroring.run()):
            await until(lambda: enforceable(made.metrics))
    assert [entry["log_level"] for entry in said] == ["error", "info"]


async def test_old_trees_stay_while_it_is_not_known_who_lives_and_while_those_live(tmp_path: Path) -> None:
    living: list[Collection[str] | None] = [None]
    made = scene(tmp_path, living=lambda: living[0])
    for version in (VERSION, NEWER, "595.1"):
        made.driver.install(version)
        made.driver.load(version)
        await made.mirroring.look()
    everything = made.trees()
    await made.mirroring.look()
    assert made.trees() == everything == 4

    living[0] = {"g-1"}
    await made.mirroring.look()
    assert made.trees() == everything
    living[0] = {"g-2"}
    with capture_logs() as said:
        await made.mirroring.look()
    assert [entry["event"] for entry in said] == ["old_mirrors_removed"]
    assert made.trees() == 2
    assert made.version() == "595.1"


async def test_the_version_that_nvml_tells_counts_where_the_kernel_tells_none(tmp_path: Path) -> None:
    made = scene(tmp_path)
    made.driver.install(NEWER)
    made.driver.version_file.unlink()
    await made.mirroring.look()
    assert made.version() == VERSION


@pytest.mark.parametrize("stopped_while", ["looking", "waiting"])
async def test_an_agent_that_ends_does_not_wait_for_the_mirror(tmp_path: Path, stopped_while: str) -> None:
    made = scene(tmp_path)
    task = asyncio.create_task(made.mirroring.look() if stopped_while == "looking" else made.mirroring.run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert (made.base / "nvidia").is_dir()
