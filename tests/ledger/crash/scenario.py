"""The changes during which the ledger is crashed: every transition once, on a directory in one of several states.

In: a directory. Out: the ledger, step by step. The steps are the same in every run, so that the state after each of
them is known beforehand.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from deviceplugin.errors import LedgerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.units import Resource
from tests.ledger.makers import claimant, grant, inventory, open_journal, open_ledger

JOURNAL = "ledger.journal"
MODES = {"kill": 1, "half": 2, "power": 3, "nospace": 4, "ioerror": 5}
"""Those of `crashpoint.c`."""
Step = Callable[[Ledger, Journal], object]
_NODE = inventory(3)


def _claim(ledger: Ledger, _: Journal) -> None:
    """As Prepare, whose caller calls again: what could not be synced is there then. Here it ends, as by Unprepare."""
    claim = grant("claim", cores=10, on=(1,))
    try:
        ledger.grant_claim((claim,), _NODE)
        asyncio.run(ledger.synced())
    except LedgerError:
        ledger.release([claim.id], why="its claim was unprepared")
        raise


def _unprepare(ledger: Ledger, _: Journal) -> None:
    """The caller calls again, until it is durable."""
    ledger.release([GrantId("g-claim-main")], why="its claim was unprepared", durable=False)
    try:
        asyncio.run(ledger.synced())
    except LedgerError:
        ledger.grant_claim((grant("claim", cores=10, on=(1,)),), _NODE)
        asyncio.run(ledger.synced())
        raise


STEPS: tuple[Step, ...] = (
    lambda ledger, _: ledger.grant(grant("a", cores=50), _NODE),
    lambda ledger, _: ledger.grant(grant("b", cores=20, on=(1,)), _NODE),
    lambda ledger, _: ledger.answer(GrantId("g-a-main"), Resource.MEMORY),
    lambda ledger, _: ledger.reassign_to_owner(GrantId("g-a-main"), claimant("b", cores=20), _NODE),
    lambda ledger, _: ledger.prove(GrantId("g-b-main"), frozenset(Resource)),
    lambda ledger, _: ledger.adopt([grant("c", cores=200, blocks=0, on=(0, 2)), grant("d", on=(1,))]),
    lambda ledger, journal: journal.rewrite(),
    lambda ledger, _: ledger.repeat(GrantId("g-a-main"), Resource.CORE),
    lambda ledger, _: ledger.release([GrantId("g-a-main"), GrantId("g-d-main")], why="their pods ended"),
    lambda ledger, _: ledger.grant(grant("e", cores=10, on=(1,)), _NODE),
    _claim,
    _unprepare,
)

SAID_AGAIN = (2, 4)
"""Places in STEPS of what does not wait for the disk: kubelet's checkpoint says it again after a power cut."""


def prepare(directory: Path, start: str) -> None:
    """What the agent finds: nothing, a journal of one grant, the same with a torn end, or with a damaged middle."""
    if start == "fresh":
        return
    ledger = open_ledger(directory)
    ledger.grant(grant("old-1", cores=1, blocks=1, on=(2,)), _NODE)
    ledger.grant(grant("old-2", cores=1, blocks=1, on=(2,)), _NODE)
    ledger.close()
    path = directory / JOURNAL
    data = path.read_bytes()
    if start == "torn":
        path.write_bytes(data + b'01234567 310 {"n":3,"at":1000.0,"cha')
    if start == "damaged":
        path.write_bytes(data.replace(b"uid-old-1", b"uid-old-X"))


def begin(directory: Path) -> tuple[Ledger, Journal]:
    journal = open_journal(directory)
    return Ledger(journal), journal
