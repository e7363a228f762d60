"""Profiles for the emulated driver, as tests need them."""

from typing import Any

Profile = dict[str, Any]

MODELS: Profile = {
    "t4": {"name": "Tesla T4", "memory_mib": 15360, "compute_capability": "7.5", "reserved_mib": 400},
    "a10": {"name": "NVIDIA A10", "memory_mib": 23028, "compute_capability": "8.6"},
    "a100": {
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "compute_capability": "8.0",
        "mig_capable": True,
    },
}


def profile(*gpus: Profile, **more: object) -> Profile:
    return {
        "format": 1,
        "name": "test",
        "driver": "550.54.15",
        "cuda": "12.4",
        "models": MODELS,
        "gpus": list(gpus),
        **more,
    }


def pair() -> Profile:
    """Two GPUs and a process of 1 GiB on the second that keeps it half busy."""
    return profile(
        {"model": "t4"},
        {"model": "t4"},
        topology={"groups": [{"level": "single", "gpus": [0, 1]}]},
        processes=[{"gpu": 1, "pid": 1, "memory_mib": 1024, "sm": 50}],
    )


def many(count: int) -> Profile:
    """More than fit into a mask of 32 bits: minors backwards, two sockets."""
    return profile(
        *({"model": "t4", "minor": count - 1 - position, "numa": position % 2} for position in range(count)),
        topology={"groups": [{"level": "node", "gpus": list(range(side, count, 2))} for side in (0, 1)]},
    )


def mixed() -> Profile:
    """Two sockets, three models, one GPU with a memory size of its own, every level in use."""
    return profile(
        {"model": "t4", "numa": 0},
        {"model": "t4", "numa": 0, "memory_mib": 16127},
        {"model": "a10", "numa": 0, "minor": 7, "compute_mode": "exclusive_process"},
        {"model": "a10", "numa": 1, "compute_mode": "prohibited"},
        {"model": "a100", "numa": 1, "bus_id": "0000000A:3B:00.0", "mig": True},
        {"model": "a100", "minor": 2},
        topology={
            "groups": [
                {"level": "node", "gpus": [0, 1, 2]},
                {"level": "multiple", "gpus": [0, 1]},
                {"level": "hostbridge", "gpus": [3, 4]},
                {"level": "single", "gpus": [4, 5]},
            ]
        },
        nvlink=[{"gpus": [4, 5], "links": 4, "version": "3.0", "via": "direct"}],
    )


def switched() -> Profile:
    """Eight GPUs on six switches."""
    return profile(
        *({"model": "a100", "numa": position // 4} for position in range(8)),
        topology={"groups": [{"level": "multiple", "gpus": [position, position + 1]} for position in range(0, 8, 2)]},
        nvlink=[
            {
                "gpus": list(range(8)),
                "links": 12,
                "version": "3.0",
                "via": "switch",
                "switches": [f"00000000:C{number}:00.0" for number in range(4, 10)],
            }
        ],
    )
