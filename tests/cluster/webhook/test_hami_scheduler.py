"""Pods that name HAMi's scheduler, which is gone, find one: with a GPU, with none, and where claims are made."""

from dataclasses import replace

import pytest

from deviceplugin.config.scheduler import WebhookSettings
from tests.cluster.webhook.makers import (
    A100S,
    GPU,
    GPUMEM,
    HAMI,
    MARKED,
    SETTINGS,
    container,
    mutated,
    pod,
    response,
    review,
)

HAMIS = "hami-scheduler"
SHAPES = {
    "no GPU": {},
    "no GPU, cpu": {"cpu": "1"},
    "0 GPUs": {GPU: "0"},
    "memory of 0 GPUs": {GPU: "0", GPUMEM: "1000"},
    "one GPU": {GPU: "1"},
    "a share": {GPU: "1", GPUMEM: "2048"},
}
SCOPES = {"all": HAMI, "marked": MARKED}


def placed_by(settings: WebhookSettings, limits: dict[str, str], name: str = HAMIS) -> str:
    given = pod(container(limits=dict(limits)), schedulerName=name)
    once = mutated(given, settings, A100S)
    assert mutated(once, settings, A100S) == once
    return str(once["spec"]["schedulerName"])


@pytest.mark.parametrize("scope", SCOPES)
def test_a_pod_that_names_hamis_scheduler_goes_to_ours(scope: str) -> None:
    settings = SCOPES[scope]
    assert {what: placed_by(settings, limits) for what, limits in SHAPES.items()} == dict.fromkeys(
        SHAPES, "vcuda-scheduler"
    )
    assert placed_by(settings, {}, "volcano") == "volcano"
    assert placed_by(replace(settings, scheduler_name=""), {}) == HAMIS, "the operator lets names alone"


def test_where_claims_are_made_it_goes_to_the_default_scheduler() -> None:
    claims = replace(HAMI, claims=True)
    assert {what: placed_by(claims, limits) for what, limits in SHAPES.items()} == dict.fromkeys(
        SHAPES, "default-scheduler"
    )
    found = response(review(pod(container(limits=dict(SHAPES["a share"])), schedulerName=HAMIS)), claims, A100S)
    assert {"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"} in found["patch"]


def test_it_keeps_its_scheduler_where_hami_still_runs_or_is_opted_out() -> None:
    assert {placed_by(SETTINGS, limits) for limits in SHAPES.values()} == {HAMIS}
    given = pod(container(), schedulerName=HAMIS)
    given["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert mutated(given, HAMI) == given
