"""Objects of cert-manager, OpenShift and the Prometheus operator: strictly what their definitions permit."""

from pathlib import Path

import pytest

from tests.daemonset.chart import Object, Rendered, render
from tests.daemonset.value_sets import VALUE_SETS, WITH_FOREIGN_KINDS
from tests.definitions.published import definitions
from tests.definitions.strict import faults

SETS = VALUE_SETS | {"all foreign kinds": WITH_FOREIGN_KINDS}


def foreign(rendered: Rendered) -> list[Object]:
    groups = {each["spec"]["group"] for each in definitions().values()}
    return [each for each in rendered if each["apiVersion"].partition("/")[0] in groups]


@pytest.mark.parametrize("name", SETS)
def test_each_is_strictly_what_its_definition_permits(helm: str, tmp_path: Path, name: str) -> None:
    for each in foreign(render(helm, SETS[name], folder=tmp_path)):
        assert faults(each, definitions()[each["kind"]]) == []


def test_the_chart_makes_one_of_each(helm: str, tmp_path: Path) -> None:
    made = {each["kind"] for each in foreign(render(helm, WITH_FOREIGN_KINDS, folder=tmp_path))}
    assert made == definitions().keys()


def test_fields_that_do_not_exist_and_values_of_another_type_are_found(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, WITH_FOREIGN_KINDS, folder=tmp_path)
    monitor = rendered.get("PodMonitor", "vcuda-agent")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    endpoint |= {"honorLabel": True, "path": 1}
    wrong, unknown = faults(monitor, definitions()["PodMonitor"])
    assert wrong == "$.spec.podMetricsEndpoints[0].path: 1 is not of type 'string'"
    assert unknown.startswith("$.spec.podMetricsEndpoints[0]: ")
    assert "'honorLabel' was unexpected" in unknown
    constraint = rendered.get("SecurityContextConstraints", "vcuda-agent")
    constraint["allowHostPid"] = True
    (unknown,) = faults(constraint, definitions()["SecurityContextConstraints"])
    assert "'allowHostPid' was unexpected" in unknown
