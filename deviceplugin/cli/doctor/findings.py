"""What a check found, and how the findings are printed: one line each, wrapped on a terminal, or one document.

In: checks, in order. Out: a `CheckResult` of each, always: a check that raises a VcudaError has failed with its
sentence, and one that the caller may not do is skipped and names the right. Where a check that others need has failed,
these are skipped.
"""

import enum
import os
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from deviceplugin.cli.terminal import clean
from deviceplugin.errors import KubeError, VcudaError, one_line
from deviceplugin.structs import replace

Subject = TypeVar("Subject")
_FORBIDDEN = 403
_WIDTH = 8
_LEAST_WIDTH = 30


class CheckOutcome(enum.Enum):
    """A warning is worth a look and stops nothing; SKIPPED says nothing about the thing itself."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckResult(msgspec.Struct, frozen=True):
    """`advice`: what to do, a sentence or a command; empty if nothing is to be done."""

    outcome: CheckOutcome
    message: str
    advice: str = ""
    check: str = ""


def ok(message: str) -> CheckResult:
    return CheckResult(CheckOutcome.OK, message)


def warning(message: str, advice: str) -> CheckResult:
    return CheckResult(CheckOutcome.WARNING, message, advice)


def failed(message: str, advice: str) -> CheckResult:
    return CheckResult(CheckOutcome.FAILED, message, advice)


def doubtful(error: VcudaError, advice: str) -> CheckResult:
    """A warning; `advice` follows what the error itself advises."""
    return warning(error.finding, "; ".join(filter(None, [error.advice, advice])))


def skipped(message: str, advice: str = "") -> CheckResult:
    return CheckResult(CheckOutcome.SKIPPED, message, advice)


class Check(msgspec.Struct, Generic[Subject], frozen=True):
    """`needed`: without it none of the following checks means anything. `to_start`: without it no agent starts."""

    name: str
    run: Callable[[Subject], Awaitable[CheckResult]]
    needed: bool = False
    to_start: bool = False


async def examine(checks: Sequence[Check[Subject]], subject: Subject) -> AsyncIterator[CheckResult]:
    """The findings, each as soon as it is known."""
    missing = ""
    for check in checks:
        found = skipped(f"{missing} has failed") if missing else await _finding(check, subject)
        if check.needed and found.outcome is CheckOutcome.FAILED:
            missing = check.name
        yield replace(found, check=check.name)


async def _finding(check: Check[Subject], subject: Subject) -> CheckResult:
    try:
        return await check.run(subject)
    except KubeError as error:
        made = skipped if error.code == _FORBIDDEN else failed
        return made(error.finding, error.advice)
    except VcudaError as error:
        return failed(error.finding, error.advice)
    except OSError as error:
        return failed(_of_system(error), "run it with the rights of the agent, as root")


def _of_system(error: OSError) -> str:
    why = error.strerror or "no answer in time"
    return f"{os.fspath(error.filename)}: {why}" if isinstance(error.filename, str | os.PathLike) else why


def lines(finding: CheckResult, width: int | None) -> list[str]:
    """The finding as one line, and its advice as another; each goes on below itself on a narrow terminal."""
    first = f"{finding.outcome.value:<{_WIDTH}} {finding.check}: {_text(finding.message)}"
    advice = f"{'':{_WIDTH}} -> {_text(finding.advice)}" if finding.advice else ""
    if width is None:
        return [first, *filter(None, [advice])]
    room = max(width, _LEAST_WIDTH)
    return [*_wrapped(first, room, _WIDTH + 1), *_wrapped(advice, room, _WIDTH + 4)]


def _wrapped(text: str, room: int, indent: int) -> list[str]:
    """Words stay whole: a name or a part of a command is to be copied."""
    return textwrap.wrap(text, room, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _text(sentence: str) -> str:
    return clean(one_line(sentence, most=1000))


def document(findings: Sequence[CheckResult]) -> dict[str, object]:
    """For programs; `status` is the worst of all."""
    return {"status": worst(findings).value, "checks": msgspec.to_builtins(list(findings))}


_OF_CALLER = ("api-server", "rights")
"""Checks of what the caller may do; they say nothing about the installation."""


def _is_unchecked(findings: Sequence[CheckResult]) -> bool:
    """Nothing that was found is about the installation."""
    return all(each.outcome is CheckOutcome.SKIPPED for each in findings if each.check not in _OF_CALLER)


def worst(findings: Sequence[CheckResult]) -> CheckOutcome:
    """SKIPPED also if only the caller's access was looked at."""
    found = {each.outcome for each in findings}
    if CheckOutcome.FAILED in found:
        return CheckOutcome.FAILED
    if _is_unchecked(findings):
        return CheckOutcome.SKIPPED
    return CheckOutcome.WARNING if CheckOutcome.WARNING in found else CheckOutcome.OK


def summary(findings: Sequence[CheckResult]) -> str:
    counts = Counter(each.outcome for each in findings)
    return ", ".join(f"{counts[each]} {each.value}" for each in CheckOutcome)


def named(names: Sequence[str], *, most: int = 3) -> str:
    """The first names, and how many there are beside them."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
