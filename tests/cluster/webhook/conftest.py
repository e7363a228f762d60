"""The chart rendered for each kind of settings that the webhook knows, for the tests that read its CEL."""

from pathlib import Path

import pytest

from tests.cluster.webhook.makers import CHOSEN, DOMAIN
from tests.daemonset.chart import Object, Rendered, render
from tests.programs import helm_program

HAMI_VALUES: dict[str, Object] = {
    "no HAMi": {"hami": {"translate": "off"}},
    "marked": {},
    "all": {"hami": {"translate": "all"}},
    "other names": {
        "resourceDomain": DOMAIN,
        "hami": {"resources": {"count": "nvidia.com/gpumem", "memory": "example.com/memory"}},
    },
}


@pytest.fixture(scope="session")
def charts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rendered]:
    """By the names of `CHOSEN`."""
    helm, folder = helm_program(request), Path(tmp_path_factory.mktemp("charts"))
    return {name: render(helm, HAMI_VALUES[name], folder=folder) for name in CHOSEN}
