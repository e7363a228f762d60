"""Container Device Interface: one spec file for each grant, for runtimes that take devices by name (`--cdi`).

In: a grant's device nodes, mounts and environment. Out: `<cdi dir>/vcuda-<grant>.json` with the one device
`<domain>/vcuda=<grant>`. A CDI edit of the environment wins over the pod's own value, which the device-plugin answer
does not. The directory is usually a tmpfs and kubelet replays its old answers after a reboot, so a copy of each file is
kept on disk and put back when the agent starts. Format: CDI 0.6.0 (containerd >= 1.7 with enable_cdi, cri-o).
"""

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from deviceplugin.errors import ContainerError
from deviceplugin.ledger.durable_files import sync_directory
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.mount import Mount

_PREFIX, _SUFFIX = "vcuda-", ".json"


Pairs = Iterable[tuple[str, str]]


class CdiSpecs:
    """The spec files of all grants: those that the runtime reads, and the `kept` copies that outlive a reboot."""

    def __init__(self, directory: Path, *, kept: Path, domain: str) -> None:
        self._directory = directory
        self._kept = kept
        self._kind = f"{domain}/vcuda"

    def write(self, grant: GrantId, *, devices: Pairs = (), mounts: Iterable[Mount] = (), env: Pairs = ()) -> None:
        """`devices` are (host path, container path), `env` (name, value)."""
        spec = {
            "cdiVersion": "0.6.0",
            "kind": self._kind,
            "devices": [{"name": grant, "containerEdits": _edits(devices, mounts, env)}],
        }
        text = json.dumps(spec, indent=1)
        for directory in (self._kept, self._directory):
            _put(directory / f"{_PREFIX}{grant}{_SUFFIX}", text)

    def restore(self) -> None:
        """Puts back the specs that a reboot removed."""
        for path in self._kept.glob(f"{_PREFIX}g-*{_SUFFIX}"):
            if not (self._directory / path.name).exists():
                _put(self._directory / path.name, path.read_text())

    def remove(self, grant: GrantId) -> None:
        for directory in (self._kept, self._directory):
            (directory / f"{_PREFIX}{grant}{_SUFFIX}").unlink(missing_ok=True)

    def remove_all_but(self, keep: Collection[GrantId]) -> None:
        for directory in (self._kept, self._directory):
            for path in directory.glob(f"{_PREFIX}g-*{_SUFFIX}"):
                if path.name[len(_PREFIX) : -len(_SUFFIX)] not in keep:
                    path.unlink(missing_ok=True)


def _put(path: Path, text: str) -> None:
    """On the disk when this returns: kubelet writes the name down and does not ask again."""
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise ContainerError(f"CDI file {path} could not be written: {error.strerror}; check --cdi-dir") from error


def _edits(devices: Pairs, mounts: Iterable[Mount], env: Pairs) -> dict[str, object]:
    return {
        "env": [f"{name}={value}" for name, value in env],
        "deviceNodes": [{"hostPath": host, "path": inside, "permissions": "rw"} for host, inside in devices],
        "mounts": [
            {
                "hostPath": mount.host,
                "containerPath": mount.inside,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in mounts
        ],
    }
