"""The two JSON files that gpu-manager's flags `--extra-config` and `--volume-config` name.

In: a path. Out: frozen values, or ValueError with a phrase that names the place in the file. Components are names of
files, never paths; the driver mirror decides what it does with them.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from deviceplugin.config.param_types import read_content, read_path

_Shape = TypeVar("_Shape")


class _Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: tuple[str, ...] = ()


class _ExtraFile(msgspec.Struct, frozen=True):
    """gpu-manager reads `default` only, and takes a file with other keys."""

    default: _Devices = _Devices()


class VolumeComponents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Programs by name; libraries by the beginning of their names."""

    binaries: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


class Volume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory with driver files that containers mount; `mode` is always read-only, whatever it says."""

    name: str
    base: str
    mode: str = "ro"
    components: VolumeComponents = VolumeComponents()


class _VolumeFile(msgspec.Struct, frozen=True):
    volume: tuple[Volume, ...] = ()


class VolumeConfig(msgspec.Struct, frozen=True):
    """What the driver mirror holds; `path` is the file that lists it, None for the built-in list."""

    path: Path | None = None
    volumes: tuple[Volume, ...] = ()


class ExtraConfig(msgspec.Struct, frozen=True):
    """Device nodes that every container gets if they exist; `path` is the file that lists them."""

    path: Path | None = None
    devices: tuple[str, ...] = ()


def read_extra_config(text: str) -> ExtraConfig:
    """Reads `{"default": {"devices": ["/dev/..."]}}`; no path is no extra devices."""
    if not text:
        return ExtraConfig()
    devices = _decode(text, _ExtraFile).default.devices
    for index, device in enumerate(devices):
        if not device.startswith("/dev/") or ".." in device or not device.isprintable():
            raise ValueError(f"{text}: $.default.devices[{index}] is {device[:60]!r}, which is not a path under /dev")
    return ExtraConfig(path=Path(text), devices=devices)


def read_volume_config(text: str) -> VolumeConfig:
    """Reads `{"volume": [{"name", "base", "components": {"binaries", "libraries"}}]}`; no path is no volumes."""
    if not text:
        return VolumeConfig()
    volumes = _decode(text, _VolumeFile).volume
    for number, volume in enumerate(volumes):
        for kind in ("binaries", "libraries"):
            for index, name in enumerate(getattr(volume.components, kind)):
                if not name or "/" in name or name in (".", "..") or not name.isprintable():
                    place = f"$.volume[{number}].components.{kind}[{index}]"
                    raise ValueError(f"{text}: {place} is {name[:60]!r}, which is not the name of a file")
    return VolumeConfig(path=Path(text), volumes=volumes)


def _decode(text: str, shape: type[_Shape]) -> _Shape:
    path = read_path(text)
    try:
        raw = read_content(path)
    except ValueError as error:
        raise ValueError(f"{text[:200]} {error}") from None
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:300]}") from None
