"""`vcuda place`, as a person and as a script use it."""

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from deviceplugin.cli import main

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tCPU Affinity
GPU0\t X \tPIX\tPHB\tPHB\tSOC\tSOC\t0-7
GPU1\tPIX\t X \tPHB\tPHB\tSOC\tSOC\t0-7
GPU2\tPHB\tPHB\t X \tPIX\tSOC\tSOC\t0-7
GPU3\tPHB\tPHB\tPIX\t X \tSOC\tSOC\t0-7
GPU4\tSOC\tSOC\tSOC\tSOC\t X \tPIX\t8-15
GPU5\tSOC\tSOC\tSOC\tSOC\tPIX\t X \t8-15
"""
PROFILE = {
    "format": 1,
    "name": "box",
    "driver": "550.1",
    "cuda": "12.4",
    "models": {
        "t4": {"name": "NVIDIA T4", "memory_mib": 15360, "compute_capability": "7.5"},
        "a100": {"name": "NVIDIA A100", "memory_mib": 40960, "compute_capability": "8.0", "mig_capable": True},
    },
    "gpus": [
        {"model": "t4", "minor": 3},
        {"model": "a100", "minor": 0},
        {"model": "a100", "minor": 1},
        {"model": "a100", "minor": 2, "mig": True},
    ],
    "processes": [{"gpu": 1, "pid": 10, "memory_mib": 5}],
}


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX)
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "box.json"
    path.write_text("\n " + json.dumps(PROFILE))
    return str(path)


def vcuda_place(*args: str, stdin: str | None = None, **env: str) -> Result:
    return CliRunner().invoke(main, ["place", *args], input=stdin, env=env)


def placed(*args: str) -> dict[str, Any]:
    result = vcuda_place(*args, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_choice_on_a_matrix(matrix: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[int], str]] = [
        ("--cores 300", [0, 1, 2], "link"),
        ("--cores 200 --occupied 2:100", [0, 1], "link"),
        ("--cores 100 --occupied 4:100", [5], "fragment"),
        ("--cores 100 --unhealthy 5 --unhealthy 4", [0], "fragment"),
        ("--cores 50 --memory 4", [0], "share"),
        ("--cores 60 --memory 4 --occupied 0:50", [1], "share"),
        ("--cores 60 --memory 4 --occupied 3:20 --occupied 3:20:7", [3], "share"),
        ("--cores 60 --memory 4 --occupied 3:20 --occupied 3:21:7", [0], "share"),
        ("--cores 60 --memory 4 --occupied 3:20:317", [0], "share"),
        ("--cores 10 --memory 4 --gpu-memory 1024", [0], "share"),
        ("--cores 600 --memory 24 --gpu-memory 1024", [0, 1, 2, 3, 4, 5], "link"),
        ("--cores 60 --memory 16 --gpus 2 --occupied 1:30 --occupied 4:30", [1, 4], "share"),
        ("--cores 60 --memory 16 --gpus 2 --occupied 1:30 --occupied 4:30 --gpu-policy link", [0, 1], "share"),
        ("--cores 60 --memory 16 --gpus 2 --occupied 1:30 --gpu-policy spread", [0, 2], "share"),
        ("--cores 200 --memory 16 --gpus 2", [0, 1], "link"),
        ("--cores 100 --gpu-policy spread --occupied 0:1:1", [2], "fragment"),
        ("--cores 200 --use-gpu 0 --use-gpu GPU-3", [0, 3], "link"),
        ("--cores 100 --avoid-gpu 4 --avoid-gpu 5", [0], "fragment"),
        ("--cores 100 --cordon 4", [5], "fragment"),
    ]
    for args, gpus, evaluator in cases:
        with subtests.test(args=args):
            document = placed("--topology", matrix, *args.split())
            assert list(document) == ["gpus", "evaluator", "reason"]
            assert (document["gpus"], document["evaluator"]) == (gpus, evaluator)
            assert document["reason"]


def test_a_profile_says_what_each_gpu_has_and_what_runs_on_it(profile: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[int]]] = [
        ("--cores 100", [3]),
        ("--cores 100 --memory 61", [1]),
        ("--cores 100 --memory 61 --gpu-memory 81920", [1]),
        ("--cores 200 --memory 122", [0, 1]),
        ("--cores 50 --memory 4", [3]),
        ("--cores 50 --memory 100", [1]),
        ("--cores 50", [3]),  # half of the smallest GPU's memory
        ("--cores 50 --occupied 3:10:40", [1]),
        ("--cores 50 --memory 4 --occupied 3:10:40", [3]),
    ]
    for args, gpus in cases:
        with subtests.test(args=args):
            assert placed("--topology", profile, *args.split())["gpus"] == gpus


def test_models_are_chosen_by_a_part_of_their_name(profile: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[int]]] = [
        ("--cores 10 --memory 1 --model a100", [1]),
        ("--cores 10 --memory 1 --avoid-model A100", [3]),
        ("--cores 10 --memory 1 --model T4 --model A100 --gpu-policy spread", [1]),
    ]
    for args, gpus in cases:
        with subtests.test(args=args):
            assert placed("--topology", profile, *args.split())["gpus"] == gpus


def test_json_and_yaml_have_the_documented_form(matrix: str) -> None:
    for form in ("json", "yaml"):
        result = vcuda_place("--topology", matrix, "--cores", "200", "-o", form)
        assert yaml.safe_load(result.stdout) == {
            "gpus": [0, 1],
            "evaluator": "link",
            "reason": "GPUs 0 and 1: the closest 2 of 6 GPUs that fit (total distance 10, all under PIX)",
        }
    json.loads(vcuda_place("--topology", matrix, "--cores", "200", "--output=json").stdout)


def test_text_is_the_minors_and_the_reason(matrix: str) -> None:
    result = vcuda_place("--topology", matrix, "--cores", "200")
    assert result.stdout.splitlines() == [
        "0 1",
        "GPUs 0 and 1: the closest 2 of 6 GPUs that fit (total distance 10, all under PIX)",
    ]


def test_explain_accounts_for_every_other_gpu(matrix: str) -> None:
    args = ["--topology", matrix, "--cores", "100", "--unhealthy", "4", "--occupied", "0:30:2", "--explain"]
    document = placed(*args)
    reasons = {entry["gpu"]: entry["reason"] for entry in document["passed_over"]}
    assert sorted([*document["gpus"], *reasons]) == list(range(6))
    assert reasons[4] == "unhealthy"
    assert reasons[0] == "partly allocated: 30 of 100 cores, 0.5 of 80 GiB"
    lines = vcuda_place(*args).stdout.splitlines()
    assert lines[2:] == [f"GPU {minor}: {reason}" for minor, reason in reasons.items()]


def test_what_cannot_be_placed_is_one_sentence_on_standard_error(matrix: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("--cores 700", ["7 whole GPUs asked", "GPUs 0-5 are free", "at most 6 GPUs"]),
        ("--cores 60 --memory 4 --gpu-memory 512", ["too small in memory", "512 MiB"]),
        ("--cores 150", ["150 is not possible", "100 or 200"]),
        ("--cores 0 --memory 8", ["without tencent.com/vcuda-core"]),
        ("--cores 0", ["--cores 0 requests nothing"]),
        ("--cores 50 --memory 8 --no-share-mode", ["whole GPUs only"]),
        ("--cores 100 --unhealthy 6", ["--unhealthy names GPU 6", "GPUs 0-5"]),
        ("--cores 100 --occupied 9:10", ["--occupied names GPU 9", "GPUs 0-5"]),
        ("--cores 100 --occupied 0:60 --occupied 0:60", ["--occupied takes 120 cores", "GPU 0", "has 100 cores"]),
        ("--cores 50 --memory 5 --gpus 2", ["5 cannot be divided evenly over 2 GPUs", "4 or 6"]),
        ("--cores 100 --model H100", ["GPUs 0-5 are of a model that the pod does not want"]),
        ("--cores 100 --use-gpu GPU-9", ["--use-gpu names 'GPU-9'"]),
        ("--cores 100 --cordon 9", ["--cordon names GPU 9", "GPUs 0-5"]),
        ("--cores 100 --occupied 0:60:321", ["321 blocks", "GPU 0", "320 blocks"]),
    ]
    for args, words in cases:
        with subtests.test(args=args):
            for output in ("table", "json"):
                result = vcuda_place("--topology", matrix, *args.split(), "--output", output, "--explain")
                assert result.exit_code == 1
                assert result.stderr.startswith("vcuda: ")
                assert result.stderr.count("\n") == 1
                document = json.dumps({"error": result.stderr.removeprefix("vcuda: ").rstrip()}) + "\n"
                assert result.stdout == (document if output == "json" else "")
                assert all(word in result.stderr for word in words), result.stderr


def test_a_wrong_command_line_ends_with_status_2(matrix: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--cores", "100"], "'--topology'"),
        (["--topology", "no-such-file", "--cores", "100"], "no-such-file"),
        (["--topology", ".", "--cores", "100"], "directory"),
        (["--topology", "MATRIX"], "'--cores'"),
        (["--topology", "MATRIX", "--cores", "many"], "many"),
        (["--topology", "MATRIX", "--cores", "1", "--occupied", "0"], "MINOR:CORES"),
        (["--topology", "MATRIX", "--cores", "1", "--occupied", "0:-1"], "MINOR:CORES"),
        (["--topology", "MATRIX", "--cores", "1", "--occupied", "0:1:2:3"], "MINOR:CORES"),
        (["--topology", "MATRIX", "--cores", "1", "--occupied", "0:\u0661"], "MINOR:CORES"),
        (["--topology", "MATRIX", "--cores", "1", "--unhealthy", "-1"], "--unhealthy"),
        (["--topology", "MATRIX", "--cores", "1", "--gpu-memory", "0"], "--gpu-memory"),
        (["--topology", "MATRIX", "--cores", "1", "--output", "xml"], "xml"),
        (["--topology", "MATRIX", "--cores", "1", "--gpus", "17"], "--gpus"),
        (["--topology", "MATRIX", "--cores", "1", "--gpu-policy", "best"], "best"),
    ]
    for args, words in cases:
        with subtests.test(args=args):
            result = vcuda_place(*[matrix if arg == "MATRIX" else arg for arg in args])
            assert (result.exit_code, result.stdout) == (2, "")
            assert words in result.stderr


def test_a_topology_that_cannot_be_read_is_named_with_its_file(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content, words in [
        (b"", "it is empty"),
        (b"hello\n", "line 1: 'hello' is not a header"),
        (b"GPU0 GPU1\nGPU0 X FOO\nGPU1 FOO X\n", "line 2, column GPU1: 'FOO'"),
        (b"\x7fELF\xff\xfe", "byte 4 is not UTF-8 text"),
        (b'{"format": 1}', "missing required field"),
        (b'{"format": ', "truncated"),
        (b" " * ((1 << 20) + 1), "larger than 1 MiB"),
    ]:
        with subtests.test(content=content):
            path = tmp_path / "topology"
            path.write_bytes(content)
            result = vcuda_place("--topology", str(path), "--cores", "100")
            assert (result.exit_code, result.stdout) == (1, "")
            assert result.stderr.startswith(f"vcuda: {path}: ")
            assert words in result.stderr
            assert result.stderr.count("\n") == 1


def test_the_topology_may_come_from_a_pipe() -> None:
    result = vcuda_place("--topology", "-", "--cores", "200", stdin=MATRIX)
    assert result.stdout.splitlines()[0] == "0 1"


def test_a_node_of_64_gpus_is_no_special_case(tmp_path: Path) -> None:
    links = {pair: "NV18" if pair[0] // 8 == pair[1] // 8 else "SYS" for pair in combinations(range(64), 2)}
    names = [f"GPU{minor}" for minor in range(64)]
    rows = [[names[a], *("X" if a == b else links[min(a, b), max(a, b)] for b in range(64))] for a in range(64)]
    path = tmp_path / "topo.txt"
    path.write_text("\n".join("\t".join(row) for row in [["", *names], *rows]))
    document = placed("--topology", str(path), "--cores", "800", "--occupied", "3:10")
    assert document["gpus"] == list(range(8, 16))


def test_the_installed_program_answers_without_loading_the_agent(matrix: str) -> None:
    """A real process: what it prints, its status, and that neither gRPC nor NVML nor Kubernetes was imported."""
    script = (
        "import sys\n"
        "from deviceplugin.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'grpc', 'pynvml', 'kubernetes', 'aiohttp', 'structlog'} & sys.modules.keys()\n"
        "    print(sorted(heavy), file=sys.stderr)\n"
    )
    good = subprocess.run(
        [sys.executable, "-c", script, "place", "--topology", matrix, "--cores", "100"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (good.returncode, good.stderr) == (0, "[]\n")
    assert good.stdout.splitlines()[0] == "4"
    bad = subprocess.run(
        [sys.executable, "-m", "deviceplugin", "place", "--topology", matrix, "--cores", "900"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("vcuda: 9 whole GPUs asked")
    assert bad.stderr.count("\n") == 1


def test_memory_is_blocks_or_a_quantity(matrix: str, subtests: pytest.Subtests) -> None:
    for memory, blocks in [
        ("32", "32"),
        ("8Gi", "32"),
        ("8192Mi", "32"),
        ("5000Mi", "20"),
        ("0.5Gi", "2"),
        ("1G", "4"),
    ]:
        with subtests.test(memory=memory):
            found, wanted = (
                vcuda_place("--topology", matrix, "--cores", "20", "--memory", each, "--explain")
                for each in (memory, blocks)
            )
            assert found.exit_code == 0
            assert found.stdout == wanted.stdout


def test_memory_in_mib_is_asked_for_as_pods_do_and_alone(matrix: str, subtests: pytest.Subtests) -> None:
    for given, meant in (
        ("--cores 20 --memory-mib 2048", "--cores 20 --memory 8"),
        ("--cores 20 --memory-mib 2049", "--cores 20 --memory 9"),
        ("--cores 20 --memory-mib 2050 --gpus 2", "--cores 20 --memory 10 --gpus 2"),
        ("--memory-mib 4096", "--cores 10 --memory 16"),
        ("--memory 4Gi --gpus 2", "--cores 20 --memory 16 --gpus 2"),
    ):
        with subtests.test(given=given):
            # Beside these 85 cores 10 have room, and 20 have not.
            args = ("--topology", matrix, "--occupied", "0:85", "--explain")
            found, wanted = (vcuda_place(*args, *each.split()) for each in (given, meant))
            assert (found.exit_code, found.stdout) == (0, wanted.stdout)
    both = vcuda_place("--topology", matrix, "--memory", "4", "--memory-mib", "1024")
    assert both.stderr.startswith("vcuda: --memory and --memory-mib are the same; give one of them; see ")


def test_memory_that_is_none_is_told_with_both_forms(matrix: str, subtests: pytest.Subtests) -> None:
    for memory in ["8GB", "8gi", "8 Gi", "1e3", "-8Gi", "Gi", "١", ""]:
        with subtests.test(memory=memory):
            result = vcuda_place("--topology", matrix, "--cores", "20", "--memory", memory)
            assert (result.exit_code, result.stdout) == (2, "")
            sentence = "is no memory; write blocks of 256 MiB such as 32, or a quantity such as 8Gi"
            assert result.stderr == f"vcuda: --memory: {memory!r} {sentence}; see main place --help\n"


def test_cores_that_are_none_are_told_what_to_write(matrix: str, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("20%", "write 20 for 20 %"),
        ("0.2", "write 20 for 20 %"),
        ("75%", "write 75 for 75 %"),
    ]
    for cores, advice in cases:
        with subtests.test(cores=cores):
            result = vcuda_place("--topology", matrix, "--cores", cores)
            assert (result.exit_code, result.stdout) == (2, "")
            sentence = f"{cores!r} is no number of cores (1/100 of a GPU's time); {advice}"
            assert result.stderr == f"vcuda: --cores: {sentence}; see main place --help\n"
