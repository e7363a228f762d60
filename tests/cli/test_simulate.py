"""`vcuda simulate`, as a person and as a script use it."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from benchmarks.traces import example
from deviceplugin.cli import main

TRACES = Path(example.__file__).parent
NODES, PODS = TRACES / "example-nodes.csv", TRACES / "example-pods.csv"


def vcuda_simulate(*args: str, nodes: Path = NODES, pods: Path = PODS) -> Result:
    return CliRunner().invoke(main, ["simulate", "--nodes", str(nodes), "--pods", str(pods), *args])


def test_the_example_is_what_its_generator_writes(tmp_path: Path) -> None:
    example.main(tmp_path)
    for path in (NODES, PODS):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_policies_stand_side_by_side_and_fragmentation_allocates_the_most() -> None:
    policies = ("fragmentation", "binpack", "spread")
    flags = [flag for policy in policies for flag in ("--node-policy", policy)]
    result = vcuda_simulate(*flags, "--seed", "1", "--seed", "2", "--seed", "3", "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    said = json.loads(result.stdout)
    at_end = [said["policies"][policy]["mean"]["allocated_percent_at_130"] for policy in policies]
    assert at_end == sorted(at_end, reverse=True)
    assert at_end[0] > 98
    assert said["allocated_percent_at_130"] == at_end[0]
    assert [each["seed"] for each in said["policies"]["spread"]["seeds"]] == [1, 2, 3]


def test_the_same_command_says_the_same() -> None:
    one, other = (json.loads(vcuda_simulate("--output", "json", "--seed", "4").stdout) for _ in range(2))
    for said in (one, other):
        run = said["policies"]["fragmentation"]
        for figures in (said, run["mean"], run["seeds"][0]):
            del figures["seconds"], figures["processor_seconds"]
    assert one == other


def test_a_table_for_a_person_and_a_picture_where_one_is_asked_for(tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    result = vcuda_simulate("--inflate", "0.5", "--plot", str(picture), "--gpu-policy", "spread")
    assert result.exit_code == 0
    assert "210 pods on 42 nodes with 160 GPUs, one seed" in result.stdout
    assert "at 50" in result.stdout
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_a_wrong_file_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    wrong = tmp_path / "pods.csv"
    wrong.write_text("cpu_milli,memory_mib,num_gpu\n1,1,1\n")
    result = vcuda_simulate(pods=wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (f"vcuda: {wrong} line 1 has no column gpu_milli; it has cpu_milli, memory_mib, num_gpu\n")


def test_a_picture_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    result = vcuda_simulate("--inflate", "0.1", "--plot", str(tmp_path / "none" / "x.svg"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "cannot be written: No such file or directory" in result.stderr


@pytest.mark.parametrize("flags", [("--node-policy", "best"), ("--inflate", "0"), ("--seed", "x"), ("--output", "xml")])
def test_a_wrong_flag_is_clicks_and_status_2(flags: tuple[str, str]) -> None:
    assert vcuda_simulate(*flags).exit_code == 2


def test_nothing_of_an_agent_is_imported_for_it() -> None:
    code = (
        "import sys; from deviceplugin.cli import main; main(['simulate', '--help'], standalone_mode=False); "
        "print(sorted({'grpc', 'kubernetes', 'pynvml', 'aiohttp'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_picture_in_the_documentation_is_what_its_command_draws(tmp_path: Path) -> None:
    page = (TRACES.parents[1] / "docs" / "simulate.md").read_text()
    command = page.split("```")[1].replace("\\\n", " ").split()
    assert command[:2] == ["vcuda", "simulate"]
    at = command.index("--nodes")
    flags = [flag for flag in command[at + 4 :] if not flag.endswith(".svg")]
    result = vcuda_simulate(*flags, str(tmp_path / "new.svg"))
    assert result.exit_code == 0
    assert (tmp_path / "new.svg").read_text() == (TRACES.parents[1] / "docs" / "simulate-example.svg").read_text()
