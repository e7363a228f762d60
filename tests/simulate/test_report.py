"""What is said of several policies: figures and a picture."""

import itertools
import json
import re
from xml.etree import ElementTree as ET

import pytest

from deviceplugin.model.preferences import NodePolicy
from deviceplugin.simulate.replay import Run, Sample
from deviceplugin.simulate.report import Tried, document, plot
from deviceplugin.structs import replace
from tests.simulate.scenes import plan, shares, two_nodes

SCENE = two_nodes(*shares(50, 100))
SVG = "{http://www.w3.org/2000/svg}"


def run(seed: int, *, allocated: float, until: int = 130, waiting: int = 4) -> Run:
    samples = tuple(
        Sample(asked=at / 100, allocated=allocated * at / until, fragmented=0.01 * at / until, waiting=at // 40)
        for at in range(1, until + 1)
    )
    return Run(seed, samples, 20, waiting, 2.5, {"insufficient whole GPUs": waiting}, {"T4": allocated}, 1.5, 1.0)


def tried(policy: NodePolicy, *allocated: float, percent: int = 130) -> Tried:
    runs = (run(seed, allocated=each, until=percent) for seed, each in enumerate(allocated, start=1))
    return Tried(plan(policy, percent=percent), tuple(runs))


BOTH = [tried(NodePolicy.FRAGMENTATION, 0.90, 0.94), tried(NodePolicy.SPREAD, 0.5, 0.6)]


def test_figures_are_reported_by_seed_and_as_means_and_the_first_policys_at_the_top() -> None:
    said = document(SCENE, BOTH)
    policies = said["policies"]
    assert isinstance(policies, dict)
    assert list(policies) == ["fragmentation", "spread"]
    first = policies["fragmentation"]
    assert [each["seed"] for each in first["seeds"]] == [1, 2]
    assert [each["allocated_percent_at_130"] for each in first["seeds"]] == [90.0, 94.0]
    assert first["mean"]["allocated_percent_at_130"] == said["allocated_percent_at_130"] == 92.0
    assert said["allocated_percent_at_100"] == pytest.approx(92 * 100 / 130, abs=0.001)
    assert (said["seconds"], said["processor_seconds"]) == (1.5, 1.0)
    assert said["fragmented_percent"] == 1.0
    assert said["allocated_percent_by_model"] == {"T4": 92.0}
    assert (said["pending"], said["arrived"], said["pending_gpus"]) == (4, 20, 2.5)
    assert len(first["seeds"][0]["allocated_percent"]) == 130
    assert policies["spread"]["mean"]["allocated_percent_at_130"] == 55.0


def test_figures_stand_at_all_of_the_capacity_and_at_the_end() -> None:
    marks = {130: [100, 130], 100: [100], 50: [50], 200: [100, 200]}
    prefix = "allocated_percent_at_"
    documents = {percent: document(SCENE, [tried(NodePolicy.BINPACK, 0.4, percent=percent)]) for percent in marks}
    found = {percent: [key for key in said if key.startswith(prefix)] for percent, said in documents.items()}
    assert found == {percent: [f"{prefix}{mark}" for mark in listed] for percent, listed in marks.items()}


def test_a_count_is_a_whole_number_and_so_is_its_mean_where_it_is_one() -> None:
    three = Tried(plan(), tuple(run(seed, allocated=0.5, waiting=waiting) for seed, waiting in ((1, 4), (2, 5))))
    for each, waiting in ((BOTH[0], "4"), (three, "4.5")):
        said = json.loads(json.dumps(document(SCENE, [each])), parse_int=str, parse_float=str)
        assert (said["arrived"], said["pending"]) == ("20", waiting)
        assert said["fragmented_percent"] == "1.0", "a percentage is none"


def test_the_picture_has_a_line_and_a_band_for_each_policy_in_each_panel() -> None:
    root = ET.fromstring(plot(BOTH, title="a <b> & c"))
    assert len(list(root.iter(f"{SVG}polyline"))) == 4
    assert len(list(root.iter(f"{SVG}polygon"))) == 4
    texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert {"a <b> & c", "92.0 fragmentation", "55.0 spread", "1.0 fragmentation", "1.0 spread"} <= texts
    assert "lines: mean of 2 seeds; bands: minimum to maximum" in texts


def test_names_at_the_ends_of_lines_never_lie_on_each_other() -> None:
    alike = [tried(policy, 0.9) for policy in NodePolicy]
    root = ET.fromstring(plot(alike, title="x"))
    ends = [text for text in root.iter(f"{SVG}text") if list(text)]
    heights = [float(text.attrib["y"]) for text in ends]
    assert len(heights) == 2 * len(NodePolicy)
    for panel in (sorted(heights[: len(NodePolicy)]), sorted(heights[len(NodePolicy) :])):
        assert all(lower - upper >= 15 for upper, lower in itertools.pairwise(panel))


def test_every_policy_has_a_colour_of_its_own() -> None:
    root = ET.fromstring(plot([tried(policy, 0.9) for policy in NodePolicy], title="x"))
    (style,) = root.iter(f"{SVG}style")
    assert style.text is not None
    for colours in style.text.split("@media"):  # light, then dark
        drawn = {line.attrib["class"] for line in root.iter(f"{SVG}polyline")}
        found = dict(re.findall(r"\.(line\d+)\{stroke:(#\w+)\}", colours))
        assert len({found[line] for line in drawn}) == len(NodePolicy)


def test_a_cluster_that_every_policy_fills_is_drawn() -> None:
    some = run(1, allocated=1.0)
    full = replace(some, samples=tuple(replace(each, allocated=1.0) for each in some.samples))
    root = ET.fromstring(plot([Tried(plan(), (full,))], title="x"))
    first = next(root.iter(f"{SVG}polyline"))
    assert {point.split(",")[1] for point in first.attrib["points"].split()} == {"0.0"}


@pytest.mark.parametrize(("percent", "start"), [(130, 70), (50, 0), (1, 0)])
def test_every_point_of_the_picture_lies_inside_its_panel(percent: int, start: int) -> None:
    drawn = [tried(NodePolicy.BINPACK, 0.9, 0.92, percent=percent), tried(NodePolicy.SPREAD, 0.6, percent=percent)]
    root = ET.fromstring(plot(drawn, title="x"))
    lines = [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in root.iter(f"{SVG}polyline")
    ]
    assert [len(points) for points in lines] == [percent - max(start, 1) + 1] * 2 + [percent] * 2
    for points in lines:
        assert points == sorted(points)
        assert all(0 <= x <= 350 and 0 <= y <= 270 for x, y in points)
