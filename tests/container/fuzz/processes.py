"""What /proc says of a process that named itself with any bytes: the numbers behind the name, or a ValueError.

The input is taken as a whole file, and as the name in a file that the kernel could have written.
"""

import contextlib

from tests.container.fuzz.harness import instrumented, run

with instrumented():
    from deviceplugin.container import processes

LONGEST_NAME = 15  # TASK_COMM_LEN without its NUL
BORN = 4211
INNER = 7


def check(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        processes.inner_pid(data)
    with contextlib.suppress(ValueError):
        processes.start_time(data)
    name = data.replace(b"\0", b"")[:LONGEST_NAME]
    fields = " ".join(map(str, range(4, 22)))
    assert processes.start_time(b"31 (%b) S %b %d 0 0\n" % (name, fields.encode(), BORN)) == BORN
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    assert processes.inner_pid(b"Name:\t%b\nUmask:\t0022\nNSpid:\t31\t%d\nNSpgid:\t1\n" % (escaped, INNER)) == INNER


if __name__ == "__main__":
    run(check)
