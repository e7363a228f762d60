"""docs/how-to/monitoring.md says how many series there are; here they are counted."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import ContainerUse, GpuSample, GpuUse
from deviceplugin.model.topology import Level
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import AgentState
from tests.observe.pictures import by_groups, gpu, grant, node, uuid

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitoring.md").read_text()
SERVING = AgentState(registered=True, synced=True)


def series(gpus: int, containers: int, *, on: int = 1) -> int:
    """Of an agent whose containers are measured, each on so many GPUs."""
    metrics = AgentMetrics(version="1")
    metrics.mirrored(driver="550.1", missing=(), enforceable=True)
    metrics.event_seen(1.0)
    metrics.identified(None, 0.1)
    minors = range(gpus)
    names = [f"ml/p{number}/c" for number in range(containers)]
    used = tuple(GpuUse(uuid(minor), 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1) for minor in range(on))
    picture = node(
        [gpu(minor) for minor in minors],
        by_groups(gpus, (Level.PIX, max(gpus, 1))),
        *(grant(name, *range(on), cores=5, blocks=4) for name in names),
        samples={uuid(minor): GpuSample(1, 1, ()) for minor in minors},
        uses={name: ContainerUse(used, processes=1, unknown_functions=0) for name in names},
    )
    assert set(picture.uses) == {GrantId(f"g-ml-p{number}-c") for number in range(containers)}
    text = metrics.render_with(picture, SERVING)[0].decode()
    return sum(len(family.samples) for family in text_string_to_metric_families(text))


def test_the_table_of_series_is_what_is_counted() -> None:
    one, two = series(2, 1), series(2, 2)
    of_gpu = series(3, 1) - one
    of_share = series(2, 1, on=2) - one
    of_container = two - one - of_share
    of_agent = one - 2 * of_gpu - of_share - of_container
    told = {what: int(count) for what, count in re.findall(r"^\| (.+?) \| (\d+) \|$", PAGE, re.MULTILINE)}
    assert told == {
        "an agent": of_agent,
        "each GPU": of_gpu,
        "each container on each of its GPUs": of_share,
        "each container": of_container,
    }
    whole = of_agent + 8 * of_gpu + 80 * (of_share + of_container)
    assert f"8 GPUs and 10 shares on each has {whole:,}." in PAGE
