"""Writes the dashboards of the chart; scripts/docs runs it.

In: the panels of `cluster`, `node` and `namespace`. Out: daemonset/chart/dashboards, or with --check an exit status
that says whether what is committed is the same.
"""

import sys

from scripts.dashboards import cluster, namespace, node
from scripts.dashboards.grafana import Dashboard, text_of
from scripts.dashboards.recorded import CHART

DASHBOARDS: dict[str, Dashboard] = {
    "cluster": cluster.DASHBOARD,
    "namespace": namespace.DASHBOARD,
    "node": node.DASHBOARD,
}


def main(*, check: bool) -> int:
    """The status is that of the process."""
    stale = []
    for name, dashboard in DASHBOARDS.items():
        path, text = CHART / "dashboards" / f"{name}.json", text_of(dashboard)
        if check and not (path.exists() and path.read_text(encoding="utf-8") == text):
            stale.append(path.name)
        elif not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"docs: daemonset/chart/dashboards/{file} is stale; run scripts/docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(check="--check" in sys.argv[1:]))
