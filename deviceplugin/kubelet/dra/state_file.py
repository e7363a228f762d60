"""Reads kubelet's own record of prepared claims, `dra_manager_state`.

In: the file (kubelet 1.32 and later). Out: `PreparedClaims` of one driver, or an error that names the file. Kubelet
writes an entry before it calls the driver, and the driver's answer after it has all of them. It appends the answer of a
repeated call to the earlier one (kubernetes#140274), so equal devices may stand there several times. The file is never
written here: kubelet does not start with a wrong checksum.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from deviceplugin.errors import KubeletError, ParseError
from deviceplugin.ledger.durable_files import cause, read_within
from deviceplugin.model.claims import ClaimRef, ClaimUid

STATE_NAME = "dra_manager_state"
MOST_BYTES = 16 << 20
"""Ten times 1,600 claims of 1 KiB."""

_NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class PreparedClaim(msgspec.Struct, frozen=True):
    """`pods`: UIDs of those that use it. `cdi`: the names that the driver answered, by request; none before that."""

    ref: ClaimRef
    pods: frozenset[str]
    cdi: Mapping[str, str] = msgspec.field(default_factory=dict)


class PreparedClaims(msgspec.Struct, frozen=True):
    """Of one driver, by UID. A file that does not exist is what a kubelet without claims has."""

    claims: Mapping[ClaimUid, PreparedClaim] = msgspec.field(default_factory=dict)
    exists: bool = True


class _RecordedDevice(msgspec.Struct, rename="pascal"):
    request_names: list[str] | None = None
    cdi_device_ids: list[str] | None = msgspec.field(default=None, name="CDIDeviceIDs")


class _RecordedDriver(msgspec.Struct, rename="pascal"):
    devices: list[_RecordedDevice] | None = None


class _RecordedClaim(msgspec.Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    claim_name: str = ""
    namespace: str = ""
    pod_uids: dict[str, object] | None = msgspec.field(default=None, name="PodUIDs")
    driver_state: dict[str, _RecordedDriver] | None = None


class _Records(msgspec.Struct, rename="pascal"):
    claim_info_state_list: list[_RecordedClaim] | None = None


class _Recorded(msgspec.Struct, rename="pascal"):
    data: str
    checksum: int


class StateFile:
    """Reads one file again and again; what has not changed is not decoded twice."""

    def __init__(self, path: Path, driver: str) -> None:
        self._path = path
        self._driver = driver
        self._last: tuple[bytes, PreparedClaims] | None = None

    def read(self) -> PreparedClaims:
        """The file as it is now. Raises KubeletError if it cannot be read, ParseError if it is damaged."""
        try:
            data = read_within(self._path, MOST_BYTES)
        except FileNotFoundError:
            return PreparedClaims(exists=False)
        except OSError as error:
            raise KubeletError(f"kubelet's record of claims {self._path} cannot be read: {cause(error)}") from error
        if self._last is None or self._last[0] != data:
            self._last = (data, parse_state(data, self._driver, where=str(self._path)))
        return self._last[1]


def parse_state(data: bytes, driver: str, *, where: str) -> PreparedClaims:
    """Claims of other drivers are left out."""
    try:
        file = msgspec.json.decode(data, type=_Recorded)
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise ParseError(f"{where}: its checksum is wrong; kubelet does not start with it")
        found = msgspec.json.decode(file.data, type=_Records).claim_info_state_list or []
    except _NOT_JSON as error:
        raise ParseError(f"{where}: {error}") from None
    return PreparedClaims(
        {
            ClaimUid(each.claim_uid): _prepared(each, each.driver_state[driver])
            for each in found
            if each.driver_state and driver in each.driver_state
        }
    )


def _prepared(claim: _RecordedClaim, state: _RecordedDriver) -> PreparedClaim:
    names = {
        request: name
        for device in state.devices or ()
        for name in device.cdi_device_ids or ()
        for request in device.request_names or ()
    }
    ref = ClaimRef(ClaimUid(claim.claim_uid), claim.namespace, claim.claim_name)
    return PreparedClaim(ref, frozenset(claim.pod_uids or ()), names)
