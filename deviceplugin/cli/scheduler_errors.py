"""Why the scheduler cannot be asked, in one sentence that ends with the way out.

In: an exception of the connection, or an answer that is not the scheduler's. Out: a VcudaError. Not here: what the
scheduler itself refuses; it has its own sentences.
"""

import ssl
from typing import Any

import aiohttp
import msgspec

from deviceplugin.cli.connection import Connection
from deviceplugin.errors import KubeError, VcudaError, one_line
from deviceplugin.kube.api_errors import lacks_right
from deviceplugin.kube.structs import StatusObject
from deviceplugin.kube.transport import cause

_ANONYMOUS = 'User "system:anonymous"'
_NO_PATH = ("no such path", "no such view")


def unreachable(server: str, error: Exception) -> VcudaError:
    """`server` is HOST:PORT."""
    text = cause(error).removeprefix(f"{server}: ")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        certificate = error.certificate_error
        why = certificate.verify_message if isinstance(certificate, ssl.SSLCertVerificationError) else text
        text = (
            f"its certificate is not trusted ({one_line(why)}); with --url give --ca-file FILE or --insecure, else "
            "correct certificate-authority of the kubeconfig"
        )
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        text = f"it does not speak TLS as expected ({_tls_reason(error.os_error)}); check address and port"
    elif isinstance(error, TimeoutError):
        text = f"{text}; check the address, or give a longer --request-timeout"
    return VcudaError(f"{server} cannot be reached: {text}")


def _tls_reason(error: OSError) -> str:
    """OpenSSL's own words, without the place in its source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.replace("_", " ").lower() or one_line(str(error))


def api_refusal(status: int, body: bytes, connection: Connection, source: str) -> KubeError:
    """An answer of the API server in the place of the scheduler's, or of a scheduler without the path."""
    said = one_line(_message(body))
    where = f"{connection.service} in namespace {connection.scheduler_namespace}"
    if said.startswith(_NO_PATH):
        text = "the scheduler is older than this command; upgrade the chart, or use the scheduler's version of vcuda"
    elif status == 401 or (status == 403 and _ANONYMOUS in said):
        text = f"the API server does not accept the credentials of {source} ({status}): {said}; log in again"
    elif lacks_right(status, said):
        text = f"{said}; an administrator gives you the right with the chart's value operators.subjects"
    elif status == 404:
        text = f"no scheduler found: there is no service {where}; install the chart, or give --scheduler-namespace NS"
    elif status in (502, 503, 504):
        text = (
            f"no replica of the scheduler answers for service {where} ({status}: {said}); look at "
            f"kubectl -n {connection.scheduler_namespace} get pods -l app.kubernetes.io/name=vcuda-scheduler"
        )
    else:
        text = f"the scheduler cannot be asked ({status}): {said}"
    return KubeError(text, code=status)


def scheduler_refusal(status: int, body: bytes) -> KubeError:
    """What the scheduler said; of another server whatever it said."""
    said = one_line(_message(body))
    if said.startswith(_NO_PATH):
        said = "the scheduler is older than this command; upgrade it, or use its version of vcuda"
    return KubeError(said or f"HTTP status {status}", code=status)


def _message(body: bytes) -> str:
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return body[:2000].decode(errors="replace")
    if isinstance(found.get("error"), str):
        return str(found["error"])
    try:
        status = msgspec.convert(found, StatusObject)
    except msgspec.ValidationError:
        return ""
    return status.message or status.reason or ""
