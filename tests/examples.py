"""How many examples Hypothesis tries: a test states the number of the thorough run, the profile says how many of them.

In: the test's number, and pytest's option `--hypothesis-profile=dev|ci|thorough` (ci without it).
Out: Hypothesis' settings for the test. scripts/check takes dev, scripts/test ci, and scripts/test --thorough thorough.

Where CI is set, every run tries the same examples, so that the change causes what the run finds; all other runs try new
examples. No example has a deadline, because on a busy machine each of them may be slow.
"""

import os
from collections.abc import Callable, Collection

import pytest
from hypothesis import HealthCheck, Phase, settings

USUAL = 100
FEW = 15
_SCALED: dict[str, Callable[[int], int]] = {
    "dev": lambda most: min(most, FEW),
    "ci": lambda most: min(50, max(most // 4, min(most, FEW))),
    "thorough": lambda most: most,
}


def register_profiles() -> None:
    for name, scaled in _SCALED.items():
        settings.register_profile(
            name,
            deadline=None,
            derandomize="CI" in os.environ,
            max_examples=scaled(USUAL),
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("ci")


def examples(
    most: int = USUAL,
    *,
    steps: int | None = None,
    dear: bool = False,
    suppress: Collection[HealthCheck] = (),
    phases: Collection[Phase] | None = None,
) -> settings:
    """Settings for a property that is sure after `most` examples; an example of a state machine has `steps` steps.

    `dear`: an example costs about a second of CPU time, so outside the thorough run the number has no lower bound.
    """
    usual = settings.default or settings()
    profile = settings.get_current_profile_name()
    number = _SCALED[profile](most)
    return settings(
        max_examples=min(number, -(-most // 4)) if dear and profile != "thorough" else number,
        stateful_step_count=steps or usual.stateful_step_count,
        suppress_health_check=[*usual.suppress_health_check, *suppress],
        phases=phases or usual.phases,
    )


def every(number: int) -> int:
    """The stride over points that a test tries one after the other: `number`, and 1 in the thorough run."""
    return 1 if settings.get_current_profile_name() == "thorough" else number


def hour_where_thorough() -> pytest.MarkDecorator:
    """For a state machine: its thorough run takes minutes for an example; in the usual one what hangs soon says so."""
    return pytest.mark.timeout(3600 if settings.get_current_profile_name() == "thorough" else 300)
