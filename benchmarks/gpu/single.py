"""One check in a separate process: reads the task from stdin and writes the outcome to the file that the task names."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.outcome import Judgement, NotRun, Status


def judge(function: str, arguments: list[str], bench: Bench) -> tuple[Status, str, dict[str, Any]]:
    module, _, name = function.partition(":")
    try:
        found: Judgement = getattr(importlib.import_module(module), name)(bench, *arguments)
    except NotRun as reason:
        return Status.NOT_RUN, str(reason), {}
    except Exception as error:
        return Status.FAILED, f"{type(error).__name__}: {error}", {}
    return found.status, found.reason, found.figures


def main() -> None:
    task = json.load(sys.stdin)
    status, reason, figures = judge(task["function"], task["arguments"], Bench.of_json(task["bench"]))
    fresh = Path(f"{task['answer']}.new")
    fresh.write_text(json.dumps({"status": status, "reason": reason, "figures": figures}))
    fresh.replace(task["answer"])


if __name__ == "__main__":
    main()
