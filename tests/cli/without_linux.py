"""Runs a program of vcuda without what only Linux has: names of the standard library, /proc, /sys, inotify.

In: `MODULE:FUNCTION` and the program's arguments. Out: what the program does. `sys.platform` stays what it is, because
the standard library would look for modules of the other system. Not a test: tests start it as a process.
"""

import importlib
import json
import os
import resource
import signal
import socket
import sys

ONLY_LINUX: dict[object, str] = {
    os: (
        "memfd_create eventfd eventfd_read eventfd_write pidfd_open getrandom splice copy_file_range posix_fadvise "
        "posix_fallocate fdatasync setns unshare getxattr setxattr listxattr removexattr sched_getaffinity "
        "sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam sched_setparam accept4 pipe2 setresuid "
        "setresgid getresuid getresgid O_TMPFILE O_PATH O_DIRECT O_LARGEFILE O_NOATIME"
    ),
    signal: "SIGRTMIN SIGRTMAX SIGPWR SIGPOLL SIGSTKFLT SIGCLD sigwaitinfo sigtimedwait",
    socket: (
        "AF_NETLINK AF_PACKET AF_VSOCK AF_ALG SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_PEERCRED SO_MARK SO_DOMAIN "
        "SO_PROTOCOL TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK TCP_DEFER_ACCEPT TCP_INFO"
    ),
    resource: "prlimit RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING RLIMIT_MSGQUEUE",
}
_FOLDERS = ("/proc/", "/sys/", "/dev/shm/")
_MODULES = ("watchdog", "pynvml", "grpc", "elftools", "spwd")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    first = arguments[0] if arguments else None
    if event in ("open", "os.listdir", "os.scandir") and str(first).startswith(_FOLDERS):
        raise FileNotFoundError(2, "not on this system", str(first))
    if event == "import" and str(first).partition(".")[0] in _MODULES:
        raise ImportError(f"{first} is not on this system")


def main() -> None:
    for module, names in ONLY_LINUX.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    where, _, function = sys.argv.pop(1).partition(":")
    sys.addaudithook(_refuse)
    getattr(importlib.import_module(where), function)()


def each() -> None:
    """A program: the commands of the JSON list in its argument, in one process. Says status, output, errors of each."""
    from click.testing import CliRunner

    from deviceplugin.cli import main as vcuda

    results = [CliRunner().invoke(vcuda, words, prog_name="vcuda") for words in json.loads(sys.argv[1])]
    print(json.dumps([(each.exit_code, each.stdout, each.stderr) for each in results]))


if __name__ == "__main__":
    main()
