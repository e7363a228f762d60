"""Flags of the webhook reach it: each default, each other value, and what is refused."""

import dataclasses

import pytest

from deviceplugin.cluster.webhook.settings import HamiSettings
from deviceplugin.config import webhook as config
from deviceplugin.config.setting import Setting
from deviceplugin.model.hami_scope import HamiScope
from deviceplugin.model.share_memory import ShareMemory
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.webhook_settings import configured

NAMES = ResourceNames("example.org")
LEAVES: dict[str, Setting] = {
    leaf.metadata["setting"].flag: leaf.metadata["setting"] for leaf in dataclasses.fields(config.WebhookSettings)
}
FIELDS = {leaf.metadata["setting"].flag: leaf.name for leaf in dataclasses.fields(config.WebhookSettings)}


def test_the_defaults_reach_the_webhook() -> None:
    found = configured(config.WebhookSettings(), NAMES)
    assert found.names == NAMES
    assert found.hami == HamiSettings()
    assert (found.default_cores, found.share_memory) == (10, ShareMemory())
    assert (found.hide_gpus, found.library_path) == (True, True)


def test_yamls_off_is_off() -> None:
    assert LEAVES["share-memory"].kind.read_yaml(False) == ShareMemory(proportional=False)
    assert LEAVES["share-memory"].kind.read_yaml(16) == ShareMemory(proportional=False, blocks=16)
    assert LEAVES["translate-hami"].kind.read_yaml(False) is HamiScope.OFF
    assert LEAVES["translate-hami"].kind.read_yaml(True) is HamiScope.ALL


def test_all_pods_with_hamis_resources_are_ours_where_that_is_chosen() -> None:
    found = configured(config.WebhookSettings(translate_hami=HamiScope.ALL), NAMES).hami
    assert found == HamiSettings(every=True)


def test_hami_is_off_where_it_is_set_off() -> None:
    assert configured(config.WebhookSettings(translate_hami=HamiScope.OFF), NAMES).hami is None


@pytest.mark.parametrize(
    ("flag", "text", "reached"),
    [
        ("scheduler-name", "hami-scheduler", "hami-scheduler"),
        ("scheduler-name", "", ""),
        ("default-cores", "0", 0),
        ("share-memory", "off", ShareMemory(proportional=False)),
        ("hide-gpus", "false", False),
        ("runtime-class", "nvidia", "nvidia"),
        ("webhook-namespaces", "a, b,", frozenset({"a", "b"})),
        ("webhook-ignored-namespaces", "", frozenset()),
    ],
)
def test_a_flag_reaches_the_webhook(flag: str, text: str, reached: object) -> None:
    value = LEAVES[flag].kind.read(text)
    chosen = configured(dataclasses.replace(config.WebhookSettings(), **{FIELDS[flag]: value}), NAMES)
    name = FIELDS[flag]
    assert getattr(chosen, name) == reached
    assert LEAVES[flag].kind.read(LEAVES[flag].kind.show(value)) == value


def test_hamis_resources_are_named_by_flags() -> None:
    flags = [flag for flag in LEAVES if flag.startswith("hami-") and flag.endswith("-resource")]
    given = {FIELDS[flag]: LEAVES[flag].kind.read(f"example.com/r{place}") for place, flag in enumerate(flags)}
    found = configured(dataclasses.replace(config.WebhookSettings(), **given), NAMES).hami
    assert found is not None
    assert found.resources == tuple(f"example.com/r{place}" for place in range(5))


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("default-cores", "101"),
        ("default-cores", "-1"),
        ("share-memory", "some"),
        ("hami-count-resource", "gpu"),
        ("hami-count-resource", "Nvidia.com/gpu"),
        ("scheduler-name", "Two Words"),
        ("translate-hami", "some"),
        ("webhook-namespaces", "a,B"),
    ],
)
def test_wrong_values_are_refused(flag: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|is no memory|is unknown"):
        LEAVES[flag].kind.read(text)
