"""Requests of Volcano's scheduler for the tests: recorded ones, and tasks of pods that the tests made."""

import json
from pathlib import Path

import msgspec

from deviceplugin.cluster.volcano.wire import VolcanoTask
from deviceplugin.model.pod import ClusterPod

RECORDED = Path(__file__).parent / "recorded"
"""Sent by vc-scheduler (August 2026) for a gang of 30 quarters of GPUs, on a real kubelet."""


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


def task(found: ClusterPod, node: str = "", *, pipelined: bool = False) -> VolcanoTask:
    """Its pod is known from the watch, so the one in the request is not read."""
    raw = json.dumps({"UID": found.uid, "NodeName": node}).encode()
    return VolcanoTask(found.uid, node, pipelined, raw, msgspec.json.encode({}))
