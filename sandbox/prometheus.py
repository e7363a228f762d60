"""A real Prometheus and promtool, of Debian's package `prometheus`: what scrapes agents and schedulers in clusters.

In: a configuration, and a folder for data. Out: a process on loopback that answers queries; promtool's verdicts. It
stands in for nothing. Invariant: after `destroy` the process is gone.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.program import Command, Program, ProgramFailureError, clean_environment, free_port

Json = dict[str, Any]


def promtool(*words: str | Path, given: bytes = b"") -> tuple[int, str]:
    """Its exit status and all that it said."""
    done = subprocess.run(
        ["promtool", *map(str, words)], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class PrometheusCommand(Command):
    """`port` answers queries."""

    port: int


class Prometheus(Program):
    """One server; `configuration` is that of Prometheus, as a value: JSON is YAML."""

    command: PrometheusCommand

    def __init__(self, home: Path, configuration: Mapping[str, object]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        file, port = home / "prometheus.yml", free_port()
        file.write_text(json.dumps(configuration))
        arguments = (
            *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={home / 'data'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        )
        super().__init__(
            PrometheusCommand(arguments, clean_environment({}), home / "prometheus.log", port), who="Prometheus"
        )

    async def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series now."""
        found = await self._get("/api/v1/query", {"query": expr})
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    async def alerts(self) -> list[Json]:
        """Those that are pending or fire."""
        found = await self._get("/api/v1/alerts", {})
        alerts: list[Json] = found["alerts"]
        return alerts

    async def wait_scraped(self, *jobs: str, deadline_s: float = 60.0) -> None:
        """Until every target of these jobs was scraped twice, so that rates have values."""

        async def are_scraped() -> bool:
            try:
                found = await self.query("min by (job) (sum_over_time(up[5m]))")
            except ProgramFailureError:
                return False
            seen = {labels["job"]: count for labels, count in found}
            return all(seen.get(job, 0) >= 2 for job in jobs)

        await self.until(are_scraped, what=f"Prometheus has scraped {', '.join(jobs)}", deadline_s=deadline_s)

    async def _get(self, path: str, parameters: Mapping[str, str]) -> Json:
        url = f"http://127.0.0.1:{self.command.port}{path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
                session.get(url, params=dict(parameters)) as answer,
            ):
                document = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ProgramFailureError(f"Prometheus does not answer: {error or 'timeout'}") from error
        if document.get("status") != "success":
            raise ProgramFailureError(f"Prometheus refuses {parameters}: {document.get('error', document)}")
        data: Json = document["data"]
        return data
