"""What the driver says about a GPU beside its answers: what it asks for, its memory, its NVLink fabric.

In: numbers of NVML, None where the driver does not say. Out: why the GPU shall get no new pods, if it shall not. Pure.
Not here: asking (`device`) and XIDs (`xid`). Invariant: what is not known condemns no GPU.
"""

from dataclasses import dataclass, fields, replace

_ACTIONS = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to stop peer-to-peer work and to reset the GPU",
    4: "the driver asks to drain the GPU and to reset it",
    6: "the driver asks for a reset of the GPU's bus",
    7: "the driver asks for a reboot of the system",
}
"""nvmlDeviceGpuRecoveryAction_t. Not 5, the recovery of an IMEX domain: that is about links between nodes."""

_FABRIC_COMPLETED = 3  # of nvmlGpuFabricState_t


@dataclass(frozen=True, slots=True)
class Fabric:
    """nvmlGpuFabricInfo_t: the state of the set-up, and its nvmlReturn_t, which counts once the state is completed."""

    state: int
    status: int

    @property
    def reason(self) -> str:
        """Until the fabric manager has set up the links, CUDA does not start on the GPU."""
        if self.state in (1, 2):
            return "its NVLink fabric is not set up yet; see the fabric manager (nvidia-fabricmanager)"
        if self.state == _FABRIC_COMPLETED and self.status:
            return f"the set-up of its NVLink fabric failed (NVML error {self.status}); see the fabric manager"
        return ""


@dataclass(frozen=True, slots=True)
class Condition:
    """Of one GPU. `locked`: confidential computing is on, and nobody has said yet that the GPUs may be used."""

    action: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    fabric: Fabric | None = None
    locked: bool | None = None

    @property
    def reason(self) -> str:
        """Why the GPU shall get no new pods; empty if there is no such reason."""
        if self.remap_failed:
            return "a faulty row of its memory could not be remapped; have the GPU checked and replaced"
        if self.action in _ACTIONS:
            return _ACTIONS[self.action]
        if self.locked:
            return "confidential computing: it accepts no work yet; attest it and run `nvidia-smi conf-compute -srs 1`"
        return self.fabric.reason if self.fabric is not None else ""

    def updated(self, newer: "Condition") -> "Condition":
        """What the newer one does not know stays as it was."""
        known = {field.name: value for field in fields(newer) if (value := getattr(newer, field.name)) is not None}
        return replace(self, **known)
