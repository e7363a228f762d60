"""The least node on which a pod can run, fast, for the tests that need no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.barenode import BareNode, bare_node, fast


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[BareNode]:
    async with bare_node(fast(short_tmp)) as node:
        yield node
