"""Flags of the webhook: each default, each other value, and what is refused."""

import dataclasses

import pytest

from deviceplugin.config.command import Setting
from deviceplugin.config.scheduler import HamiScope, HamiSettings, WebhookSettings
from deviceplugin.model.units import ShareMemory

LEAVES: dict[str, Setting] = {
    leaf.metadata["setting"].flag: leaf.metadata["setting"]
    for tree in (WebhookSettings, HamiSettings)
    for leaf in dataclasses.fields(tree)
    if "setting" in leaf.metadata
}


def test_a_tree_made_by_hand_has_the_defaults_of_the_flags() -> None:
    found = WebhookSettings()
    assert found.hami == HamiSettings()
    assert (found.default_cores, found.share_memory) == (10, ShareMemory())
    assert found.hide_gpus


def test_yamls_off_is_off() -> None:
    memory, scope = LEAVES["share-memory"].value_type, LEAVES["translate-hami"].value_type
    assert memory.read(memory.text_of(False)) == ShareMemory(proportional=False)
    assert memory.read(memory.text_of(16)) == ShareMemory(proportional=False, blocks=16)
    assert scope.read(scope.text_of(False)) is HamiScope.OFF
    assert scope.read(scope.text_of(True)) is HamiScope.ALL


REACHED = {
    ("scheduler-name", "hami-scheduler"): "hami-scheduler",
    ("scheduler-name", ""): "",
    ("default-cores", "0"): 0,
    ("share-memory", "off"): ShareMemory(proportional=False),
    ("hide-gpus", "false"): False,
    ("runtime-class", "nvidia"): "nvidia",
    ("state-directory", "/var/lib/vcuda"): "/var/lib/vcuda",
}
WRONG = (  # more of them: tests/config/test_scheduler.py
    *(("default-cores", "-1"), ("state-directory", "var/lib")),
    *(("scheduler-name", "Two Words"), ("translate-hami", "some")),
)


def test_a_value_is_read_and_shown() -> None:
    types = {flag: LEAVES[flag].value_type for flag, _ in REACHED}
    assert {(flag, text): types[flag].read(text) for flag, text in REACHED} == REACHED
    again = {(flag, text): types[flag].read(types[flag].show(value)) for (flag, text), value in REACHED.items()}
    assert again == REACHED


def test_wrong_values_are_refused(subtests: pytest.Subtests) -> None:
    for flag, text in WRONG:
        with subtests.test(flag, text=text), pytest.raises(ValueError, match=r"is not|is no memory|is unknown"):
            LEAVES[flag].value_type.read(text)
