"""What is special about Leases: the forms of their times and the bounds of their numbers.

In: a Lease as JSON. Out: nothing, or an `ApiError`. Who may hold it is not the server's business: candidates agree on
that by the version that they replace.
"""

import re

from sandbox.apiserver.status import ApiError, JsonObject, invalid

# MicroTime is parsed with exactly six digits of a second; a time as other objects have it is refused.
_MICRO_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}(Z|[+-]\d{2}:\d{2})", re.ASCII)


def admit(new: JsonObject, _old: JsonObject | None) -> None:
    spec, name = new.setdefault("spec", {}), new["metadata"]["name"]
    for field in ("acquireTime", "renewTime"):
        text = spec.get(field)
        if text is not None and not _MICRO_TIME.fullmatch(str(text)):
            raise ApiError(400, f'Lease in version "v1" cannot be handled as a Lease: parsing time "{text}"')
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        raise invalid("Lease", name, f"spec.leaseDurationSeconds: Invalid value: {seconds}: must be greater than 0")
    if (count := spec.get("leaseTransitions")) is not None and count < 0:
        raise invalid("Lease", name, f"spec.leaseTransitions: Invalid value: {count}: must be at least 0")
