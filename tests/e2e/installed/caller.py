"""A kube-scheduler that is none of the release's own.

In: one replica's address, the CA that it shows, a certificate. Out: what it is answered.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3

from sandbox.cluster.certificates import KeyPair
from sandbox.cluster.client import ApiError, Client
from tests.e2e.installed.release import NAMESPACE


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks one replica, by what the chart's certificate is called."""

    url: str
    ca: Path
    certificate: KeyPair

    def filter(self, *, showing: bool) -> str:
        """With which words nonsense is refused."""
        shown = (str(self.certificate.certificate), str(self.certificate.key)) if showing else (None, None)
        pool = urllib3.PoolManager(
            ca_certs=str(self.ca),
            cert_file=shown[0],
            key_file=shown[1],
            assert_hostname=f"vcuda-scheduler.{NAMESPACE}.svc",
        )
        with pool, pytest.raises(ApiError) as caught:
            Client(self.url, pool, {}).post("/filter", {})
        return str(caught.value)
