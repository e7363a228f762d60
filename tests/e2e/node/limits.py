"""The limits file as the in-container library of gpu-manager reads it, written down a second time on purpose.

In: the bytes of /etc/vcuda/vcuda.config. Out: `Limits`. Not here: the agent's own encoder: a shared mistake would hide.
Invariant: 8,240 bytes exactly; the library ignores a file of any other size.
"""

import struct
from dataclasses import dataclass

SIZE = 8240
BLOCK_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The fields by which a container's slice is enforced."""

    pod_uid: str
    container: str
    memory_bytes: int
    cores: int
    enforced: bool


def parse_limits(content: bytes) -> Limits:
    if len(content) != SIZE:
        raise ValueError(f"vcuda.config has {len(content)} bytes; its reader takes {SIZE} only")
    return Limits(
        pod_uid=_text(content[0:48]),
        container=_text(content[4096:8192]),
        memory_bytes=struct.unpack_from("<Q", content, 8208)[0],
        cores=struct.unpack_from("<i", content, 8216)[0],
        enforced=bool(struct.unpack_from("<i", content, 8232)[0]),
    )


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode()
