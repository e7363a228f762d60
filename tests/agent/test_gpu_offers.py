"""A GPU is offered in one way; what the other way still holds of it stays known."""

import pytest

from deviceplugin.agent.gpu_offers import GpuOffers
from deviceplugin.errors import ConfigError
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.structs import replace
from tests.ledger.makers import grant, inventory, uuid

NODE = inventory(3)


def offers(*grants: Grant, enabled: bool = True, chosen: str = "") -> GpuOffers:
    return GpuOffers(enabled, frozenset(filter(None, chosen.split(","))), lambda: grants)


def by_claim(minor: int) -> Grant:
    return replace(grant("claim", on=(minor,)), source=Source.CLAIM)


def minors(found: GpuOffers, *, claims: bool) -> list[int]:
    one = found.for_claims(NODE) if claims else found.for_plugin(NODE)
    return [gpu.minor for gpu in one.gpus if one.is_available(gpu)]


def test_each_gpu_is_offered_once() -> None:
    wanted: dict[tuple[bool, str], tuple[list[int], list[int]]] = {
        (False, ""): ([], [0, 1, 2]),
        (True, ""): ([0, 1, 2], []),
        (True, "2"): ([2], [0, 1]),
        (True, f"0,{uuid(1)}"): ([0, 1], [2]),
    }
    made = {(enabled, chosen): offers(enabled=enabled, chosen=chosen) for enabled, chosen in wanted}
    assert {key: (minors(each, claims=True), minors(each, claims=False)) for key, each in made.items()} == wanted


def test_a_gpu_that_went_to_claims_stays_known_to_kubelet_while_a_container_holds_it() -> None:
    found = offers(grant("pod", cores=30, on=(1,))).for_plugin(NODE)
    assert [gpu.minor for gpu in found.gpus] == [1]
    assert found.health_of(uuid(1)).reason == "offered to ResourceClaims"


def test_what_containers_of_the_device_plugin_hold_is_not_offered_to_claims() -> None:
    found = offers(grant("pod", cores=30, blocks=8, on=(1,)), by_claim(0)).held_by_plugin()
    assert {each: (amount.cores, amount.blocks) for each, amount in found.items()} == {uuid(1): (30, 8)}


def test_a_gpu_that_claims_hold_is_not_offered_to_the_device_plugin() -> None:
    assert minors(offers(by_claim(0), chosen="2"), claims=False) == [1]


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--dra-gpus names 7, and this node has 0 \("):
        offers(chosen="1,7").check(NODE)
