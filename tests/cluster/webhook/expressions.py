"""The chart's CEL as another implementation reads it, and pods as an API server has them.

In: expressions as the chart renders them. Out: their results for a pod. `real_pods` have the types that the API server
knows and no nulls: it evaluates no expression on other pods.
"""

from typing import Any

import cel
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.pod_json import Json
from tests.cluster.webhook.makers import CORE, GPU, GPUCORES, GPUMEM, MEMORY, MEMORY_MIB, PERCENTAGE


class Compiled:
    """A list of named expressions, compiled once."""

    def __init__(self, items: list[Json]) -> None:
        self._programs = {item["name"]: cel.compile(item["expression"]) for item in items}

    def says(self, name: str, **variables: Any) -> Any:
        return self._programs[name].execute(variables)

    def all_say_yes(self, **variables: Any) -> bool:
        answers = [self.says(name, **variables) for name in self._programs]
        assert all(isinstance(answer, bool) for answer in answers)
        return all(answers)


_counts = st.sampled_from(["0", "1", "2", "30", "100", "150", "4096", "1k", "-4"])
_resources = st.sampled_from(
    [
        CORE,
        MEMORY,
        MEMORY_MIB,
        GPU,
        GPUMEM,
        PERCENTAGE,
        GPUCORES,
        "nvidia.com/priority",
        "nvidia.com/mig-1g.5gb",
        "example.com/memory",
        "cpu",
        "memory",
    ]
)
_lists = st.dictionaries(_resources, _counts, max_size=3)
_asked = st.fixed_dictionaries({}, optional={"limits": _lists, "requests": _lists})
_variables = st.fixed_dictionaries(
    {"name": st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PATH"])},
    optional={"value": st.sampled_from(["all", "/a:/b", ""])},
)


def _named(name: str) -> st.SearchStrategy[Json]:
    optional = {
        "resources": _asked,
        "env": st.lists(_variables, max_size=2),
        "securityContext": st.just({"privileged": True}),
    }
    return st.fixed_dictionaries({"name": st.just(name)}, optional=optional)


def _listed(*names: str) -> st.SearchStrategy[list[Json]]:
    return st.tuples(*map(_named, names)).map(list)


_annotations = st.dictionaries(
    st.sampled_from([
        "tencent.com/vcuda-allocation", "tencent.com/predicate-gpu-idx-0", "tencent.com/predicate-gpu",
        "tencent.com/vcuda-gpus", "tencent.com/gpu-assigned", "hami.io/gpu-scheduler-policy", "nvidia.com/use-gputype",
        "nvidia.com/vgpu-mode", "nvidia.com/other", "kubernetes.io/config.mirror", "mine", "example.com/hami.io",
    ]),
    st.sampled_from(["", "1", "hami-core", "mig", "main=2"]),
    max_size=3,
)  # fmt: skip
_labels = st.dictionaries(
    st.sampled_from(["hami.io/webhook", "tencent.com/vcuda-webhook", "app"]),
    st.sampled_from(["ignore", "on"]),
    max_size=2,
)
_metadata = st.fixed_dictionaries({"name": st.just("p")}, optional={"annotations": _annotations, "labels": _labels})
_spec = st.fixed_dictionaries(
    {"containers": _listed("main") | _listed("main", "side")},
    optional={
        "initContainers": _listed("init"),
        "schedulerName": st.sampled_from(["default-scheduler", "hami-scheduler", "volcano"]),
        "nodeName": st.just("n1"),
    },
)
real_pods: st.SearchStrategy[Json] = st.fixed_dictionaries({"metadata": _metadata, "spec": _spec})
annotation_maps = _annotations
