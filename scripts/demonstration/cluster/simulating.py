"""`vcuda simulate` on the example that is shipped: what each node policy would make of a workload."""

import asyncio
import json
from typing import Any

from sandbox.emulated_gpus import REPOSITORY
from sandbox.program import clean_environment
from sandbox.scheduler import PROGRAM
from scripts.demonstration.cluster import promises
from scripts.demonstration.cluster.findings import Simulated
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.policies import POLICIES
from scripts.demonstration.failure import DemoError

EXAMPLE = "benchmarks/traces/example"
ARGUMENTS = ("simulate", "--nodes", f"{EXAMPLE}-nodes.csv", "--pods", f"{EXAMPLE}-pods.csv")
WITHIN_S = 30.0


async def simulate(play: Play) -> None:
    play.show.act("Which policy for your workload? vcuda simulate tries them")
    document = await _run()
    found = tuple(
        Simulated(name, **{key: each["mean"][key] for key in Simulated.__struct_fields__[1:]})
        for name, each in document["policies"].items()
    )
    play.note(simulated=found)
    play.show.say(f"[dim]$ vcuda {' '.join(ARGUMENTS)}[/]")
    play.show.simulated(found, document)
    play.keep(promises.fragmentation_allocates_most(found))


async def _run() -> dict[str, Any]:
    policies = [word for policy in POLICIES for word in ("--node-policy", policy)]
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), *ARGUMENTS, *policies, "--output", "json"),
        cwd=REPOSITORY,
        env=clean_environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            out, errors = await process.communicate()
    except TimeoutError:
        raise DemoError(f"vcuda simulate was not over after {WITHIN_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise DemoError(f"vcuda simulate failed: {errors.decode().strip() or 'it said nothing'}")
    found: dict[str, Any] = json.loads(out)
    return found
