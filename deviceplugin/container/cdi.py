"""Container Device Interface: one spec file for each grant, for runtimes that take devices by name (`--cdi`).

In: a grant's device nodes, mounts and environment. Out: `<cdi dir>/vcuda-<grant>.json` with the one device
`<domain>/vcuda=<grant>`. A CDI edit of the environment wins over the pod's own value, which the device-plugin answer
does not. The directory is usually a tmpfs and kubelet replays its old answers after a reboot, so a copy of each file is
kept on disk and put back when the agent starts, with the device nodes that the GPUs have then: the UUIDs in it say
which GPUs are meant. Where one of these is gone there is no file, so the runtime starts nothing. Format: CDI 0.6.0
(containerd >= 1.7 with enable_cdi, cri-o).
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from deviceplugin.errors import ContainerError
from deviceplugin.ledger.durable_files import cause, replace_file
from deviceplugin.ledger.grant import GrantId
from deviceplugin.log import Pace
from deviceplugin.model.allocation import Mount

log = structlog.get_logger("vcuda.container")
_PREFIX, _SUFFIX = "vcuda-", ".json"
_GPU_NODE = re.compile(r"/dev/nvidia[0-9]+", re.ASCII)
_GPUS = "NVIDIA_VISIBLE_DEVICES="


Pairs = Iterable[tuple[str, str]]


class CdiSpecs:
    """The spec files of all grants: those that the runtime reads, and the `kept` copies that outlive a reboot."""

    def __init__(self, directory: Path, *, kept: Path, domain: str) -> None:
        self._directory = directory
        self._kept = kept
        self._kind = f"{domain}/vcuda"
        self._pace = Pace()

    def write(self, grant: GrantId, *, devices: Pairs = (), mounts: Iterable[Mount] = (), env: Pairs = ()) -> None:
        """`devices` are (host path, container path), `env` (name, value)."""
        spec = {
            "cdiVersion": "0.6.0",
            "kind": self._kind,
            "devices": [{"name": grant, "containerEdits": _edits(devices, mounts, env)}],
        }
        text = _text(spec)
        for directory in (self._kept, self._directory):
            _put(directory / f"{_PREFIX}{grant}{_SUFFIX}", text)

    def restore(self, nodes: Mapping[str, str]) -> bool:
        """Makes every spec right for now. `nodes`: by UUID, `/dev/nvidiaN` of each GPU.

        One spec that cannot be made right is removed, and the others follow all the same. False: it may be right when
        this is called again.
        """
        is_done = True
        for kept in self._kept.glob(f"{_PREFIX}g-*{_SUFFIX}"):
            path = self._directory / kept.name
            try:
                text = _with_nodes(kept.read_text(), nodes)
                for each in (kept, path):
                    if not each.exists() or each.read_text() != text:
                        _put(each, text)
            except (OSError, LookupError, TypeError, ValueError, ContainerError) as error:
                is_done = is_done and not isinstance(error, OSError | ContainerError)
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                if self._pace.allows(path):
                    log.warning("cdi_file_not_restored", path=str(path), error=str(error))
        return is_done

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
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise ContainerError(f"CDI file {path} could not be written: {cause(error)}; check --cdi-dir") from error


def _with_nodes(text: str, nodes: Mapping[str, str]) -> str:
    """The spec with the device nodes of its GPUs as they are now; LookupError if one is gone."""
    spec: dict[str, Any] = json.loads(text)
    edits = spec["devices"][0]["containerEdits"]
    named = next(each[len(_GPUS) :] for each in (*edits["env"], _GPUS) if each.startswith(_GPUS))
    gpus = [uuid for uuid in named.split(",") if uuid]
    if gone := [uuid for uuid in gpus if uuid not in nodes]:
        raise LookupError(f"GPU {gone[0]} is not on this node any more")
    before = [each for each in edits["deviceNodes"] if _GPU_NODE.fullmatch(each["path"])]
    root = before[0]["hostPath"].removesuffix(before[0]["path"])
    others = [each for each in edits["deviceNodes"] if each not in before]
    now = [before[0] | {"hostPath": root + nodes[uuid], "path": nodes[uuid]} for uuid in gpus]
    edits["deviceNodes"] = [*now, *others]
    return _text(spec)


def _text(spec: Mapping[str, object]) -> str:
    """Indented by msgspec: Python's encoder leaves C for that."""
    return msgspec.json.format(json.dumps(spec), indent=1)


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
