"""Objects of cert-manager, OpenShift and the Prometheus operator: strictly what their definitions permit."""

from collections.abc import Mapping

from tests.daemonset.chart import Chart, Object, Rendered
from tests.daemonset.value_sets import VALUE_SETS, WITH_FOREIGN_KINDS
from tests.definitions.strict import faults

SETS = VALUE_SETS | {"all foreign kinds": WITH_FOREIGN_KINDS}


Definitions = Mapping[str, Object]


def foreign(rendered: Rendered, definitions: Definitions) -> list[Object]:
    groups = {each["spec"]["group"] for each in definitions.values()}
    return [each for each in rendered if each["apiVersion"].partition("/")[0] in groups]


def test_each_is_strictly_what_its_definition_permits(chart: Chart, foreign_definitions: Definitions) -> None:
    made = {name: foreign(rendered, foreign_definitions) for name, rendered in chart.render_all(SETS).items()}
    found = [(name, each["kind"], faults(each)) for name, objects in made.items() for each in objects]
    assert [case for case in found if case[-1]] == []
    assert {each["kind"] for each in made["all foreign kinds"]} == foreign_definitions.keys()


def test_fields_that_do_not_exist_and_values_of_another_type_are_found(
    chart: Chart, foreign_definitions: Definitions
) -> None:
    rendered = chart.render(WITH_FOREIGN_KINDS)
    monitor = rendered.get("PodMonitor", "vcuda-agent")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    endpoint |= {"honorLabel": True, "path": 1}
    wrong, unknown = faults(monitor)
    assert wrong == "$.spec.podMetricsEndpoints[0].path: 1 is not of type 'string'"
    assert unknown.startswith("$.spec.podMetricsEndpoints[0]: ")
    assert "'honorLabel' was unexpected" in unknown
    constraint = rendered.get("SecurityContextConstraints", "vcuda-agent")
    constraint["allowHostPid"] = True
    (unknown,) = faults(constraint)
    assert "'allowHostPid' was unexpected" in unknown
