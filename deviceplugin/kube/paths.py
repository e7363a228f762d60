"""Paths of the API server. Names come from outside: whatever is in them, they stay in their place."""

from urllib.parse import quote


def core(*parts: str) -> str:
    """Of core/v1."""
    return "/api/v1/" + _joined(parts)


def of_group(group_version: str, *parts: str) -> str:
    """Of a named group, as in `coordination.k8s.io/v1`."""
    return f"/apis/{group_version}/" + _joined(parts)


def _joined(parts: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in parts)
