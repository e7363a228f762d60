"""`vcuda simulate`, as a person and as a script use it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from benchmarks.traces import example
from deviceplugin.cli import main
from deviceplugin.config.scheduler import PlacementSettings

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


def test_what_is_left_out_of_an_export_is_counted_on_standard_error_and_in_the_document(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "T4", "nvidia.com/gpu.memory": "15360"}
    nodes = [
        {"kind": "Node", "metadata": {"name": f"n{at}", "labels": labels}, "status": {"allocatable": {
            "cpu": "8", "memory": "8Gi", "nvidia.com/gpu": gpus}}}
        for at, gpus in enumerate(["2", "1k", "72", "100", "x"])
    ]  # fmt: skip
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}  # fmt: skip
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"kind": "List", "items": [*nodes, pod]}))
    result = vcuda_simulate("--output", "json", nodes=file, pods=file)
    assert result.exit_code == 0
    assert result.stderr.startswith("vcuda: 4 objects are left out: ")
    assert (result.stderr.count("(Node "), result.stderr.count("\n")) == (3, 1)
    document = json.loads(result.stdout)
    assert (document["nodes"], len(document["left_out"])) == (1, 4)


def test_tables_have_a_row_or_a_column_for_each_policy() -> None:
    result = vcuda_simulate("--node-policy", "spread", "--node-policy", "binpack", "--seed", "1", "--seed", "2")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("210 pods on 42 nodes with 160 GPUs, mean of 2 seeds.")
    at = lines.index("NODE POLICY AT 100% AT 130% USELESS% PENDING SECONDS")
    assert [line.split()[0] for line in lines[at + 1 : at + 3]] == ["spread", "binpack"]
    assert "ALLOCATED% OF GPU MODEL SPREAD BINPACK" in lines
    assert any(re.fullmatch(r"A100 \d+\.\d \d+\.\d", line) for line in lines)
    assert "PENDING PODS, BY THE REASON OF MOST NODES SPREAD BINPACK" in lines
    assert any(re.fullmatch(r"insufficient cpu or memory \d+ \d+", line) for line in lines)


def test_without_a_policy_that_of_the_scheduler_is_simulated() -> None:
    scheduler = PlacementSettings()
    said = json.loads(vcuda_simulate("-o", "json").stdout)
    assert (list(said["policies"]), said["gpu_policy"]) == ([scheduler.node_policy.value], scheduler.gpu_policy.value)


def test_the_same_command_says_the_same() -> None:
    one, other = (json.loads(vcuda_simulate("--output", "json", "--seed", "4").stdout) for _ in range(2))
    for said in (one, other):
        run = said["policies"][PlacementSettings().node_policy.value]
        for figures in (said, run["mean"], run["seeds"][0]):
            del figures["seconds"], figures["processor_seconds"]
    assert one == other


def test_every_process_says_the_same_whatever_its_hashes_are() -> None:
    """Nodes, GPUs and reasons go through sets and dicts; their order must never be seen."""
    program = [sys.executable, "-c", "from deviceplugin.cli import main; main()", "simulate", "--output", "json"]
    command = [*program, "--nodes", str(NODES), "--pods", str(PODS), "--gpu-policy", "spread"]
    command += [flag for policy in ("binpack", "spread", "fragmentation") for flag in ("--node-policy", policy)]
    said = []
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said.append(re.sub(r'"(processor_)?seconds": [0-9.]+', "", result.stdout))
    assert said[0] == said[1] == said[2]


def test_a_table_for_a_person_and_a_picture_where_one_is_asked_for(tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    result = vcuda_simulate("--inflate", "0.5", "--plot", str(picture), "--gpu-policy", "spread")
    assert result.exit_code == 0
    assert "210 pods on 42 nodes with 160 GPUs, one seed" in result.stdout
    assert "AT 50%" in result.stdout
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_a_wrong_file_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    wrong = tmp_path / "pods.csv"
    wrong.write_text("cpu_milli,memory_mib,num_gpu\n1,1,1\n")
    result = vcuda_simulate(pods=wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (f"vcuda: {wrong} line 1 has no column gpu_milli; it has cpu_milli, memory_mib, num_gpu\n")


def test_a_picture_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    picture = tmp_path / "none" / "x.svg"
    result = vcuda_simulate("--inflate", "0.1", "--plot", str(picture))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"vcuda: --plot {picture} cannot be written: {picture.parent} is no directory\n"


def test_a_picture_of_another_kind_is_refused_and_not_written(tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    result = vcuda_simulate("--inflate", "0.1", "--plot", str(picture))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"vcuda: --plot {picture}: the picture is SVG; give a name that ends in .svg\n"
    assert not picture.exists()


def test_a_report_that_cannot_be_written_is_one_sentence() -> None:
    program = [sys.executable, "-c", "from deviceplugin.cli import main; main()", "simulate", "--inflate", "0.1"]
    for output in ("table", "json"):
        with Path("/dev/full").open("w") as full:
            command = [*program, "--nodes", str(NODES), "--pods", str(PODS), "--output", output]
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        said = result.stderr.splitlines()
        assert said[0] == "vcuda: the answer cannot be written to standard output: No space left on device"
        assert result.returncode == 1


def test_tasks_that_ask_for_next_to_nothing_are_refused_before_days_pass(tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    pods.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "1,1,0,0\n" * 2000 + "0,0,1,10\n")
    result = vcuda_simulate(pods=pods)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "vcuda: about 41620800 tasks would have to arrive to reach that demand, and at most 5000000 are "
        "simulated; lower --inflate, or leave out pods that request no GPU\n"
    )


def test_a_wrong_flag_is_one_line_and_status_2(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("--node-policy", "best"),
        ("--inflate", "0"),
        ("--inflate", "nan"),
        ("--inflate", "inf"),
        ("--inflate", "1.005"),
        ("--seed", "x"),
        ("--output", "xml"),
    ]
    for flags in cases:
        with subtests.test(flags=flags):
            result = vcuda_simulate(*flags)
            assert (result.exit_code, result.stdout) == (2, "")
            assert re.fullmatch(rf"vcuda: (-o / )?{flags[0]}: .*; see \S+ simulate --help\n", result.stderr), (
                result.stderr
            )


def test_what_is_simplified_is_said_with_the_figures() -> None:
    table = " ".join(vcuda_simulate("--inflate", "0.1").stdout.split())
    assert "none ends, whatever times the file has" in table
    for flags, said in (((), "--as-scheduler shows"), (("--as-scheduler",), "as the scheduler's extender does")):
        document = json.loads(vcuda_simulate("--inflate", "0.1", "--output", "json", *flags).stdout)
        assert "priorities and gangs do not" in document["simplified"]
        assert said in document["simplified"]
        assert document["as_scheduler"] == bool(flags)


def test_a_terminal_sees_how_far_it_is_and_who_stops_it_gets_no_traceback_and_no_figures() -> None:
    program = [sys.executable, "-c", "from deviceplugin.cli import main; main()", "simulate", "--inflate", "100"]
    command = [*program, "--nodes", str(NODES), "--pods", str(PODS), "--seed", "1", "--seed", "2"]
    terminal, its_end = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end, text=True) as running:
        shown = ""
        while f"run 1 of 2: {PlacementSettings().node_policy.value}, seed 1" not in shown:
            shown += os.read(terminal, 4096).decode(errors="replace")
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate()
    while "Aborted!" not in shown:
        shown += os.read(terminal, 4096).decode(errors="replace")
    os.close(its_end)  # not before: Linux may drop what is under way when the last end is closed
    os.close(terminal)
    assert (running.returncode, out) == (1, "")
    assert "Traceback" not in shown


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
