"""A picture of several policies: what was allocated, and what was free and useless, as tasks arrived.

In: the runs of each policy. Out: SVG, written without a library: two panels of lines need none. The line is the mean of
the seeds, the band behind it reaches from the least to the largest. Colours are told apart by those who see fewer.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from deviceplugin.simulate.report import Tried
from deviceplugin.simulate.run import Sample, mean

_COLOURS = ("#0072b2", "#d55e00", "#009e73")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 420, 260, 60, 50, 80
_Figure = Callable[[Sample], float]


def plot(tried: Sequence[Tried], *, title: str) -> str:
    panels = (
        ("allocated, % of all GPUs", lambda sample: sample.allocated),
        ("free but useless to the next task, % of all GPUs", lambda sample: sample.fragmented),
    )
    width, height = _LEFT + 2 * _WIDTH + _GAP + 30, _TOP + _HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<g font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, (heading, figure) in enumerate(panels):
        parts.append(f'<g transform="translate({_LEFT + number * (_WIDTH + _GAP)},{_TOP})">')
        parts += _panel(tried, heading, figure)
        parts.append("</g>")
    parts += _legend(tried, _TOP + _HEIGHT + 48)
    return "\n".join([*parts, "</g></svg>"]) + "\n"


def _panel(tried: Sequence[Tried], heading: str, figure: _Figure) -> Iterator[str]:
    columns = [_columns(each, figure) for each in tried]
    right = max(each.plan.inflate_percent for each in tried)
    top = _round_up(max(value for each in columns for column in each for value in column))
    yield f'<text x="0" y="-8">{heading}</text>'
    for step in range(6):
        y = _HEIGHT - _HEIGHT * step / 5
        yield f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{top * step / 5:g}</text>'
    for percent in range(0, right + 1, max(10, right // 50 * 10)):
        x = _WIDTH * percent / right
        yield f'<text x="{x:.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{percent}</text>'
    yield f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 30}" text-anchor="middle">asked for, % of all GPUs</text>'
    for each, colour in zip(columns, _colours(), strict=False):
        scale = (_WIDTH / right, _HEIGHT / top)
        yield _band(each, colour, scale)
        yield _line([mean(column) for column in each], colour, scale)


def _columns(tried: Tried, figure: _Figure) -> list[list[float]]:
    """For each percent that was asked for the figure of every seed, in percent."""
    percents = range(1, tried.plan.inflate_percent + 1)
    return [[100 * figure(run.at(percent)) for run in tried.runs] for percent in percents]


def _line(values: Sequence[float], colour: str, scale: tuple[float, float]) -> str:
    points = " ".join(_point(at, value, scale) for at, value in enumerate(values, start=1))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _band(columns: Sequence[Sequence[float]], colour: str, scale: tuple[float, float]) -> str:
    upper = [_point(at, max(column), scale) for at, column in enumerate(columns, start=1)]
    lower = [_point(at, min(column), scale) for at, column in enumerate(columns, start=1)]
    return f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity="0.2"/>'


def _point(at: int, value: float, scale: tuple[float, float]) -> str:
    return f"{at * scale[0]:.1f},{_HEIGHT - value * scale[1]:.1f}"


def _legend(tried: Sequence[Tried], y: int) -> Iterator[str]:
    for number, (each, colour) in enumerate(zip(tried, _colours(), strict=False)):
        x = _LEFT + 140 * number
        yield f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 30}" y="{y}">{escape(each.name)}</text>'


def _colours() -> Iterator[str]:
    while True:
        yield from _COLOURS


def _round_up(value: float) -> float:
    return next((bound for bound in (1, 2, 5, 10, 20, 50, 100) if value <= bound), 100)
