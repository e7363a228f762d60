"""Over a node's life with both ways to ask no GPU is over-committed, what runs keeps its grant, and all grants end.

Hypothesis plays kubelet, kube-scheduler and the API server: claims are allocated, prepared once, twice or at the same
time, used by containers, ended, deleted by force while a container still runs; pods of the device plugin come and go on
the same GPUs; kubelet loses its record, the agent is killed, also with its journal lost, and rounds of the reconciler
happen between all that. Ledger, prepare, unprepare and reconciler are the real ones.
"""

import asyncio
import json
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceplugin.agent.claim_reconciler import ClaimReconciler
from deviceplugin.errors import CapacityError, KubeNotFoundError
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.state_file import StateFile
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid, ContainerClaim
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import BLOCK_BYTES
from tests.examples import examples
from tests.kubelet.dra.test_prepare import Heard
from tests.ledger.crash.scenario import JOURNAL
from tests.ledger.makers import BLOCKS, grant, inventory, open_ledger
from tests.ledger.makers import pod as pod_of

GPUS = 2
NODE = inventory(GPUS)
DRIVER, POOL = "gpu.vcuda.tencent.com", "node-a"
sizes = st.tuples(st.integers(1, 100), st.integers(1, BLOCKS))
minors = st.integers(0, GPUS - 1)


@dataclass
class SimulatedClaim:
    """`recorded` is what kubelet has written down; `mounted` what a container that runs has.

    `at_api`: it is there, with its allocation and its pod. `is_lost`: journal and record were lost while it ran.
    """

    ref: ClaimRef
    minor: int
    size: tuple[int, int]
    at_api: bool = True
    recorded: str = ""
    known: bool = False
    mounted: str = ""
    is_lost: bool = False

    @property
    def claim(self) -> Claim:
        cores, blocks = self.size
        consumed = {"cores": Fraction(cores), "memory": Fraction(blocks * BLOCK_BYTES)}
        device = ClaimedDevice("gpu", DRIVER, POOL, f"gpu-{self.minor}", "s", consumed)
        return Claim(self.ref, (device,), frozenset({f"pod-{self.ref.uid}"}))

    @property
    def pod(self) -> Pod:
        made = pod_of(f"pod-{self.ref.uid}")
        (container,) = made.containers
        using = PodContainer(container.ref, container.role, 0, claims=(ContainerClaim(self.ref.name),))
        return Pod(made.ref, (using,))


class NoFiles:
    """What containers mount is `SimulatedClaim.mounted` here."""

    async def ready(self, grant: Grant, container: PodContainer | None) -> str:
        return f"tencent.com/vcuda={grant.id}"

    def drop(self, grant: Grant) -> None:
        """Nothing was written."""


class ClaimMachine(RuleBasedStateMachine):
    """Every step is a whole event; what overlaps within the agent, overlaps within a step."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
        self.claims: list[SimulatedClaim] = []
        self.pods: list[GrantId] = []
        self.serial = 0
        self.start()

    def start(self) -> None:
        self.ledger = open_ledger(self.directory)
        state = StateFile(self.directory / "dra_manager_state", DRIVER)
        self.driver = Claims(
            ledger=self.ledger,
            inventory=lambda: NODE,
            get_claim=self.get,
            get_pods=self.find,
            files=NoFiles(),
            report=Heard(),
            driver=DRIVER,
            pool=POOL,
            wait_s=0.0,
            look_s=0.001,
        )
        self.reconciler = ClaimReconciler(
            self.ledger,
            self.driver,
            state,
            running=self.running,
            get_claim=self.get,
            pods=lambda: [each.pod for each in self.claims],
            report_joined=self.never_joined,
            period_s=1.0,
        )
        self.driver.is_complete = self.reconciler.is_complete

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.calm_down()
            self.ledger.close()
            shutil.rmtree(self.directory)

    # ---- what the agent asks ----

    async def get(self, ref: ClaimRef) -> Claim:
        await asyncio.sleep(0)
        for each in self.claims:
            if each.at_api and each.ref.name == ref.name and ref.uid in ("", each.ref.uid):
                return each.claim
        raise KubeNotFoundError(f"claim {ref} is gone", code=404)

    async def find(self, uids: Set[PodUid]) -> dict[PodUid, Pod]:
        await asyncio.sleep(0)
        return {each.pod.ref.uid: each.pod for each in self.claims if f"pod-{each.ref.uid}" in uids}

    def never_joined(self, container: PodContainer, pod: Pod, held: Collection[str]) -> None:
        raise AssertionError(f"{container.ref} has one claim")

    def running(self, grants: Iterable[Grant]) -> frozenset[str]:
        mounted = {each.mounted for each in self.claims}
        return frozenset(each.id for each in grants if f"tencent.com/vcuda={each.id}" in mounted)

    # ---- what happens ----

    def those(self, **wanted: bool) -> list[SimulatedClaim]:
        return [each for each in self.claims if all(bool(getattr(each, name)) is on for name, on in wanted.items())]

    @rule(minor=minors, size=sizes)
    def allocate(self, minor: int, size: tuple[int, int]) -> None:
        """As kube-scheduler: never more of a GPU than it has, by the claims that it knows."""
        taken = [each.size for each in self.those(at_api=True) if each.minor == minor]
        if sum(cores for cores, _ in taken) + size[0] > 100 or sum(blocks for _, blocks in taken) + size[1] > BLOCKS:
            return
        self.serial += 1
        ref = ClaimRef(ClaimUid(f"uid-{self.serial}"), "default", f"claim-{self.serial}")
        self.claims.append(SimulatedClaim(ref, minor, size))

    @precondition(lambda self: self.those(at_api=True))
    @rule(data=st.data(), times=st.integers(1, 3), is_written_down=st.booleans())
    def prepare(self, data: st.DataObject, times: int, is_written_down: bool) -> None:
        """Kubelet writes the claim down before the call, and the answer after it, unless it is killed in between."""
        found = data.draw(st.sampled_from(self.those(at_api=True)), label="claim")
        found.known = True
        self.write_record()

        async def calls() -> set[str]:
            answers = await asyncio.gather(
                *(self.driver.prepare(found.ref) for _ in range(times)), return_exceptions=True
            )
            for each in answers:
                assert not isinstance(each, BaseException) or isinstance(each, CapacityError), each
            return {each[0].cdi for each in answers if not isinstance(each, BaseException)}

        names = asyncio.run(calls())
        assert len(names) <= 1, "all calls have one answer"
        if names and is_written_down:
            (found.recorded,) = names
            self.write_record()

    @precondition(lambda self: self.those(known=True))
    @rule(data=st.data())
    def run_container(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.those(known=True)), label="claim")
        found.mounted = found.recorded

    @precondition(lambda self: self.those(known=True))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The container ends, then kubelet ends the claim, then the pod and its claim go."""
        found = data.draw(st.sampled_from(self.those(known=True)), label="claim")
        found.mounted = ""
        asyncio.run(self.driver.unprepare(found.ref))
        found.known, found.recorded, found.at_api = False, "", False
        self.write_record()

    @precondition(lambda self: self.those(at_api=True))
    @rule(data=st.data())
    def delete_by_force(self, data: st.DataObject) -> None:
        """The scheduler gives the GPU to others, while a container may still run; kubelet ends the claim later."""
        data.draw(st.sampled_from(self.those(at_api=True)), label="claim").at_api = False

    @precondition(lambda self: self.those(at_api=False, mounted=True))
    @rule(data=st.data())
    def end_container(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.those(at_api=False, mounted=True)), label="claim").mounted = ""

    @rule(minor=minors, size=sizes)
    def grant_by_plugin(self, minor: int, size: tuple[int, int]) -> None:
        self.serial += 1
        made = grant(f"pod-{self.serial}", cores=min(size[0], 99), blocks=size[1], on=(minor,))
        with suppress(CapacityError):
            if not self.reconciler.is_complete():
                return  # `Reconciler.ensure_complete` refuses it
            self.ledger.grant(made, NODE)
            self.pods.append(made.id)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def release_by_plugin(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.pods), label="pod")
        self.pods.remove(found)
        self.ledger.release([found], why="its pod ended")

    @rule()
    def lose_kubelets_record(self) -> None:
        """Containers run on; their claims are never unprepared. A journal that was lost is not made again from it."""
        held = {f"tencent.com/vcuda={each.id}" for each in self.ledger.grants()}
        for each in self.claims:
            each.is_lost |= bool(each.mounted) and each.mounted not in held
            each.known, each.recorded = False, ""
        self.write_record()

    @rule(lose_journal=st.booleans())
    def restart_agent(self, lose_journal: bool) -> None:
        kept = [each for each in self.ledger.grants() if each.source is not Source.CLAIM]
        self.ledger.close()
        if lose_journal:
            (self.directory / JOURNAL).unlink()
            for each in self.claims:
                each.is_lost |= not (each.recorded and each.at_api)
        self.start()
        if lose_journal:
            self.ledger.adopt(kept)  # by kubelet's checkpoint, as tests/ledger shows

    @rule()
    def round(self) -> None:
        asyncio.run(self.reconciler.reconcile())
        assert self.reconciler.is_complete()

    def write_record(self) -> None:
        device = {"PoolName": POOL, "DeviceName": "gpu-0", "RequestNames": ["gpu"]}
        entries = [
            {
                "ClaimUID": each.ref.uid,
                "ClaimName": each.ref.name,
                "Namespace": each.ref.namespace,
                "DriverState": {
                    DRIVER: {"Devices": [device | {"CDIDeviceIDs": [each.recorded]}] if each.recorded else None}
                },
            }
            for each in self.claims
            if each.known
        ]
        text = json.dumps({"ClaimInfoStateList": entries})
        file = {"Data": text, "Checksum": zlib.crc32(text.encode())}
        (self.directory / "dra_manager_state").write_text(json.dumps(file))

    def calm_down(self) -> None:
        """Everything ends and every source answers: after three rounds nothing is held."""
        for each in self.claims:
            each.mounted, each.at_api, each.known, each.recorded = "", False, False, ""
        self.write_record()
        self.ledger.release(self.pods, why="their pods ended")
        for _ in range(3):
            asyncio.run(self.reconciler.reconcile())
        assert self.ledger.grants() == ()

    @invariant()
    def no_gpu_is_over_committed(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.over_commitments(NODE) == ()

    @invariant()
    def what_runs_holds_its_grant(self) -> None:
        """But for what nobody knows any more, and until the record was read after a loss of the journal."""
        if hasattr(self, "ledger") and self.reconciler.is_complete():
            held = {f"tencent.com/vcuda={each.id}" for each in self.ledger.grants()}
            assert {each.mounted for each in self.claims if each.mounted and not each.is_lost} <= held

    @invariant()
    def no_request_holds_two_grants(self) -> None:
        if hasattr(self, "ledger"):
            keys = [each.allocation.owner.key for each in self.ledger.grants()]
            assert len(keys) == len(set(keys))


TestBothWaysToAsk = ClaimMachine.TestCase
TestBothWaysToAsk.settings = examples(100, steps=40)
