"""The soak: churn, faults and a watcher side by side; then everything settles, and nothing may be left.

In: a cluster and a plan. Out: `Findings`. Not here: each of its parts.
Invariant: what fails in a thread fails the soak, and every fault is over before it is judged what is left.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import DeadlineError, wait_until
from tests.e2e.soak.churn import Churn
from tests.e2e.soak.faults import UNREACHABLE, Supervisor, choose, faults_of
from tests.e2e.soak.node import Node, running_node, spinning
from tests.e2e.soak.remains import left_over, mounts_of, read_disagreements, read_remains
from tests.e2e.soak.report import Findings
from tests.e2e.soak.waiting_pods import why_unbound, why_waiting
from tests.e2e.soak.watcher import Watcher
from tests.e2e.soak.workloads import Kind, make_workload

FAULT_PERIOD_S = 20.0
STEP_S = 0.7
LAST = "soak-last"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, with which random numbers, and on how hard a node."""

    minutes: float
    seed: int
    spin: int = 0
    identity_budget: str = ""

    @property
    def repeat(self) -> str:
        more = [f"--spin {self.spin}"] if self.spin else []
        more += [f"--identity-budget {self.identity_budget}"] if self.identity_budget else []
        return " ".join(["scripts/soak", f"--minutes {self.minutes:g}", f"--seed {self.seed}", *more])

    @property
    def agent_flags(self) -> list[str]:
        return [f"--identity-budget={self.identity_budget}"] if self.identity_budget else []


def soak(cluster: Cluster, plan: Plan) -> Findings:
    say(f"soak: {plan.repeat}")
    with ExitStack() as stack:
        node = stack.enter_context(running_node(cluster, *plan.agent_flags))
        stack.enter_context(spinning(cluster, plan.spin))
        return _Soak(node, plan).run()


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


class _Soak:
    """One soak on one node."""

    def __init__(self, node: Node, plan: Plan) -> None:
        layout = node.cluster.layout
        self._node, self._plan = node, plan
        blocks = {gpu.uuid: gpu.blocks for gpu in node.agent.usage().gpus}
        self._watcher = Watcher(node, blocks, say)
        self._churn = Churn(
            node.cluster.admin,
            layout.static_pods,
            layout.name,
            Random(f"{plan.seed} churn"),
            late=lambda: self._watcher.waiting.late,
            present=lambda: self._watcher.waiting.present,
        )
        self._supervisor = Supervisor(node)
        self._faults: Counter[str] = Counter()
        self._mounts_before = mounts_of(node)
        self._left: list[str] = []
        self._errors: list[str] = []

    def run(self) -> Findings:
        began = time.monotonic()
        with self._watching():
            self._break_and_churn()
            say("the faults are over")
            self._settle()
            say("deleting everything")
            last = ""
            try:
                last = self._empty()
            except DeadlineError as error:
                self._left.append(str(error))
        self._judge_remains(last)
        self._judge_logs()
        return self._findings(time.monotonic() - began)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """The watcher sees the end as well. Its own failure ends the soak."""
        over = threading.Event()
        with ThreadPoolExecutor(2) as threads:
            both = (self._watcher.watch_containers, self._watcher.watch_pods)
            watching = [threads.submit(each, over) for each in both]
            try:
                yield
            finally:
                over.set()
            for each in watching:
                each.result()

    def _break_and_churn(self) -> None:
        until, over = time.monotonic() + 60 * self._plan.minutes, threading.Event()
        with ThreadPoolExecutor(1) as threads:
            breaking = threads.submit(self._break, over)
            try:
                while time.monotonic() < until and not breaking.done():
                    self._churn.step()
                    time.sleep(STEP_S)
            finally:
                over.set()
            breaking.result()

    def _break(self, over: threading.Event) -> None:
        faults, rng = faults_of(self._node), Random(f"{self._plan.seed} faults")
        before, following = "", time.monotonic() + FAULT_PERIOD_S / 2
        while not over.wait(STEP_S):
            self._supervisor.look()
            if time.monotonic() >= following:
                following = time.monotonic() + FAULT_PERIOD_S
                fault = choose(faults, rng, before)
                before = fault.name
                say(f"fault: {fault.name}")
                self._faults[fault.name] += 1
                if fault.damages_checkpoint:
                    self._watcher.waiting.damaged_at = time.monotonic()
                fault.inject(rng)

    def _settle(self) -> None:
        """Every pod runs, is over or waits for room; then containers, ledger and folders agree."""
        self._wait("every pod has started", self._waiting_pods)
        self._wait("containers, ledger and folders agree", self._disagreements)

    def _empty(self) -> str:
        """Deletes everything, and then one more pod, for which kubelet tidies its checkpoint; that one's UID."""
        self._churn.delete_all()
        last = make_workload(Kind.SHARE, LAST, Random(0))
        wait_until(lambda: self._created(last.objects[0][1]), "the last pod is created")
        uid = pods.wait_running(self._node.cluster.admin, [LAST])[LAST].uid
        self._churn.delete_all()
        return uid

    def _created(self, body: JsonObject) -> bool:
        try:
            pods.create(self._node.cluster.admin, body)
        except UNREACHABLE:
            return LAST in pods.states(self._node.cluster.admin)
        return True

    def _judge_remains(self, last: str) -> None:
        def left() -> list[str]:
            return left_over(read_remains(self._node, self._mounts_before), last=last)

        self._wait("nothing is left", left)

    def _judge_logs(self) -> None:
        logs = {"agent": self._node.agent.process.log, "scheduler": self._node.scheduler.process.log}
        for name, log in logs.items():
            for line in log.read_text(errors="replace").splitlines():
                if "Traceback" in line or '"traceback"' in line or '"exception"' in line:
                    self._errors.append(f"the log of the {name} has a traceback: {line[:600]}")

    def _wait(self, what: str, wrong: Callable[[], list[str]]) -> None:
        """What is still wrong when the time is over is left."""
        last: list[str] = []

        def right() -> bool:
            self._supervisor.look()
            try:
                last[:] = wrong()
            except (*UNREACHABLE, AssertionError) as error:
                last[:] = [f"{what} cannot be seen: {error}"]
            return not last

        try:
            wait_until(right, what)
        except DeadlineError:
            self._left += last

    def _waiting_pods(self) -> list[str]:
        self._churn.delete_incomplete()
        items = self._node.cluster.admin.get(pods.PODS)["items"]
        whys = {str(item["metadata"]["name"]): (item, why_waiting(item) or why_unbound(item)) for item in items}
        return [
            f"pod {name} does not start: {why}"
            for name, (item, why) in whys.items()
            if why and item["metadata"]["uid"] not in self._watcher.waiting.forgotten
        ]

    def _disagreements(self) -> list[str]:
        return read_disagreements(self._node)

    def _findings(self, seconds: float) -> Findings:
        watcher, churn = self._watcher, self._churn
        lives = list(watcher.growth.lives())
        return Findings(
            minutes=seconds / 60,
            pods_made=churn.made,
            killed_containers=churn.killed_containers,
            containers_checked=len(watcher.checked),
            most_at_once=watcher.most_at_once,
            looks=watcher.looks,
            faults=self._faults,
            ended_by_themselves=self._supervisor.ended,
            unanswered_calls=churn.unanswered,
            refused=watcher.waiting.reasons(),
            without_devices=len(watcher.without_devices.since),
            forgotten=len(watcher.waiting.forgotten),
            stuck=list(watcher.waiting.stuck.values()),
            violations=[*watcher.violations, *(life.grew for life in lives if life.grew)],
            left=self._left,
            lives=[f"{life.name}: {life}" for life in lives],
            repeat=self._plan.repeat,
            errors=self._errors,
        )
