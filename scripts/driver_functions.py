"""What vcuda does with each function of CUDA's driver interface and of NVML.

In: library/interposer/*/functions.toml, which puts each function into one class, and the tables of hooks beside it.
Out: classes, hooked names, and the page docs/reference/driver-functions.md. Not here: which functions there are; the
tests compare that with NVIDIA's headers. Invariant: what is hooked is read from the tables of hooks.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

INTERPOSER = Path(__file__).resolve().parent.parent / "library/interposer"
_INTERFACES = {"cuda": "CUDA: `libcuda.so.1`", "nvml": "NVML: `libnvidia-ml.so.1`"}
_SUFFIXES = re.compile(r"(_v\d+)?(_pt[sd][sz])?$")
_LISTED = 5
"""So many functions without a hook are named in one list; a longer list has their number."""


@dataclass(frozen=True, slots=True)
class FunctionClass:
    """`hooked`: what the hooks do. Why others have none: `unhooked`, and `passed` for those that it does not have."""

    title: str
    functions: tuple[str, ...]
    hooked: str = ""
    passed: str = ""
    unhooked: Mapping[str, str] = field(default_factory=dict)


@cache
def classes(interface: str) -> Mapping[str, FunctionClass]:
    """`interface`: cuda or nvml."""
    read = tomllib.loads((INTERPOSER / interface / "functions.toml").read_text(encoding="utf-8"))
    return {key: _class(**one) for key, one in read.items()}


def _class(*, functions: str, unhooked: Iterable[Mapping[str, str]] = (), **words: str) -> FunctionClass:
    reasons = {name: each["why"] for each in unhooked for name in each["functions"].split()}
    return FunctionClass(functions=tuple(functions.split()), unhooked=reasons, **words)


@cache
def hooks(interface: str) -> frozenset[str]:
    """Every row of the interposer's tables."""
    text = "".join(path.read_text() for path in sorted((INTERPOSER / interface).glob("hooks*.def")))
    return frozenset(re.findall(r"^HOOK\((\w+)\)", text, flags=re.MULTILINE))


def base(name: str) -> str:
    """Without the suffixes of versions and of per-thread default streams."""
    return _SUFFIXES.sub("", name)


def page(generated: str) -> str:
    parts = "".join(f"## {title}\n\n{''.join(_sections(interface))}" for interface, title in _INTERFACES.items())
    return f"""# The driver's functions

{generated}

What vcuda's library does with each function of the driver in the container of a share. Names are without the suffixes
of versions (`_v2`) and of per-thread default streams (`_ptsz`). Long lists of functions without a hook show only
their number; `functions.toml` in `library/interposer/cuda` and `nvml` has the names. Tests compare them with the
headers of CUDA 11.8 to 13.5.

{parts.rstrip()}
"""


def _sections(interface: str) -> Iterator[str]:
    with_hook = {base(name) for name in hooks(interface)}
    for one in classes(interface).values():
        yield f"### {one.title}\n\n"
        hooked = [name for name in one.functions if name in with_hook]
        if hooked:
            yield f"**Hooked.** {one.hooked}\n{_names(hooked)}\n\n"
        without = [name for name in one.functions if name not in with_hook]
        reasons = {name: one.unhooked.get(name, one.passed) for name in without}
        for why in dict.fromkeys(reasons.values()):
            names = [name for name in without if reasons[name] == why]
            shown = _names(names) if len(names) <= _LISTED else f"{len(names)} functions."
            yield f"**Not hooked.** {why}\n{shown}\n\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
