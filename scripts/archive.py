"""Archives whose bytes depend on nothing but their files: members are sorted, belong to nobody, and have one time."""

import gzip
import io
import tarfile
from collections.abc import Collection, Mapping


def archive(files: Mapping[str, bytes], at: int, *, programs: Collection[str] = ()) -> bytes:
    """A tar.gz. `at`: Unix seconds; `programs` may be executed."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, body in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(body), at, 0o755 if name in programs else 0o644
            made.addfile(member, io.BytesIO(body))
    return gzip.compress(plain.getvalue(), mtime=at)
