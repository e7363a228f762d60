"""What the machine must have before a cluster can be brought up.

In: this machine. Out: the folders of the Kubernetes programs and of containerd's, after what is missing was installed
and built.
Not here: the decision to skip (`tests/e2e/conftest.py`).
Invariant: `UnavailableError` names the one thing that cannot be had and what to do about it.
"""

import os
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parent / "kubernetes"


class UnavailableError(Exception):
    """This machine cannot run a real Kubernetes."""


def kubernetes_programs() -> Path:
    if os.geteuid() != 0:
        raise UnavailableError("Containers need root: run the e2e tests as root.")
    _script("packages")
    return Path(_script("build").strip().splitlines()[-1])


def containerd_programs() -> Path:
    """The folder with a containerd that knows CDI, its shim and `ctr`."""
    return Path(_script("build", "containerd").strip().splitlines()[-1])


def coscheduling_programs() -> Path:
    """The folder with a kube-scheduler that has the coscheduling plugin, and with the definition of its PodGroup."""
    return Path(_script("build", "coscheduling").strip().splitlines()[-1])


def volcano_programs() -> Path:
    """The folder with Volcano's scheduler and controllers, and with the definitions of its kinds."""
    return Path(_script("build", "volcano").strip().splitlines()[-1])


def kueue_programs() -> Path:
    """The folder with Kueue's controllers and its chart."""
    return Path(_script("build", "kueue").strip().splitlines()[-1])


def _script(name: str, *arguments: str) -> str:
    """Its progress goes to our own stderr: a cold build takes ten minutes, and silence would look like a hang."""
    done = subprocess.run([str(SCRIPTS / name), *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UnavailableError(
            f"{SCRIPTS / name} could not provide what the cluster needs (exit {done.returncode}); see above."
        )
    return done.stdout
