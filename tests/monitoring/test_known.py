"""The reader of queries: a wrong name or label cannot pass."""

from tests.monitoring.known import selectors, unknown_in


def test_metrics_and_their_matchers_are_found() -> None:
    query = (
        'sum by (node, le) (rate(a_total{x="1",y!~"q|sum(b)"}[5m])) / on (node) group_left (index) '
        'max by (node) (c) or label_replace(d, "to", "$1", "from", "(.+)") > 1'
    )
    assert set(selectors(query)) == {
        ("a_total", frozenset({"x", "y"})),
        ("c", frozenset()),
        ("d", frozenset()),
    }
    assert set(selectors('count({__name__=~"a|b",x="1"})')) == {("a", frozenset({"x"})), ("b", frozenset({"x"}))}


WRONG = {
    "vcuda_gpu_healthy == 0": [],
    "vcuda_gpu_healty == 0": ["vcuda_gpu_healty"],
    'vcuda_gpu_healthy{uid="x"}': ["vcuda_gpu_healthy{uid}"],
    "sum(rate(vcuda_scheduler_request_duration_seconds_bucket[5m]))": [],
    "sum by (node, nod) (vcuda_gpu_healthy)": ["(nod)"],
    "vcuda_gpu_healthy * on (node, uuid) group_left (index) vcuda_gpu_info": [],
    "vcuda_gpu_healthy * on (node, uuid) group_left (indx) vcuda_gpu_info": ["(indx)"],
    'label_replace(vcuda_gpu_info, "UUID", "$1", "uuid", "(.+)") * on (UUID) DCGM_FI_DEV_GPU_TEMP': [],
    'sum(node:vcuda_gpus:count{namespace="x"})': ["node:vcuda_gpus:count{namespace}"],
}


def test_what_is_not_there_is_named() -> None:
    assert {query: unknown_in(query) for query in WRONG} == WRONG
