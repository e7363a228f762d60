"""`scripts/soak`: a soak on a cluster of its own.

In: the command line. Out: lines as it goes, the table, and 1 if anything was wrong. Not here: the soak.
"""

import argparse
import secrets
import sys

from sandbox.cluster.cluster import running_cluster
from sandbox.cluster.prerequisites import containerd_programs, kubernetes_programs
from tests.e2e.soak.report import table
from tests.e2e.soak.soak import Plan, soak


def main() -> int:
    plan = _plan()
    with running_cluster(kubernetes_programs(), containerd_programs()) as cluster:
        found = soak(cluster, plan)
    print(table(found))
    return 0 if found.passed else 1


def _plan() -> Plan:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Random pods and faults on a real Kubernetes.")
    parser.add_argument("--minutes", type=float, required=True, help="how long pods come and go while faults happen")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of every random decision")
    parser.add_argument("--spin", type=int, default=0, metavar="N", help="processes beside it that use a core each")
    parser.add_argument("--identity-budget", default="", metavar="DURATION", help="of the agent, 30ms for example")
    given = parser.parse_args()
    return Plan(given.minutes, given.seed, given.spin, given.identity_budget)


if __name__ == "__main__":
    sys.exit(main())
