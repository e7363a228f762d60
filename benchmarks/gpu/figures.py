"""Median and spread of repeated measurements, as results files show them."""

import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Median, interquartile range, and the values."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    rounded = [round(value, digits) for value in values]
    return {"median": round(statistics.median(values), digits), "iqr": round(high - low, digits), "values": rounded}


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
