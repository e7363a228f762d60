"""What the agent and its registration process tell each other: lines of JSON, on the process's standard streams.

In: messages. Out: bytes, and messages again; ValueError if a line holds none. Containers connect to the registration
process, so what it sends names nothing but a grant, and the name that a container gave.
"""

import msgspec

LONGEST_LINE = 1 << 20
_ENCODER = msgspec.json.Encoder()


class ServedGrants(msgspec.Struct, frozen=True, tag=True):
    """From the agent: the grants that have a socket, and no others have one."""

    grants: tuple[str, ...]


class RegistrationResult(msgspec.Struct, frozen=True, tag=True):
    """From the agent, about a call: the name of a gRPC status, empty if the files are written."""

    call: int
    status: str = ""
    message: str = ""


class RegistrationCall(msgspec.Struct, frozen=True, tag=True):
    """From the process: a container of this grant looks for its files under this name."""

    call: int
    grant: str
    name: str


class SocketFailure(msgspec.Struct, frozen=True, tag=True):
    """From the process: this grant has no socket."""

    grant: str
    error: str


FromAgent = ServedGrants | RegistrationResult
FromProcess = RegistrationCall | SocketFailure
from_agent: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
from_process: msgspec.json.Decoder[FromProcess] = msgspec.json.Decoder(FromProcess)


def line(message: FromAgent | FromProcess) -> bytes:
    return _ENCODER.encode(message) + b"\n"
