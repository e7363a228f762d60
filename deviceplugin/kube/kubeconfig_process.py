"""Reads a kubeconfig or the pod's service account with the `kubernetes` package, in a separate process.

In: the path of a kubeconfig, or None. Out: `Facts`, or a ConfigError of one sentence. The package supports exec
plugins, OIDC, token files and certificates. With its imports it needs 20 MiB and half a second for one short use, so a
short-lived process (`read_apart`) imports it. `read` does the same in the calling process.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from deviceplugin.errors import ConfigError, one_line

_HEADER = "BearerToken"  # the package keeps the whole Authorization header under this key, also Basic
_LONGEST_S = 60.0  # an exec plugin may call a remote server


class Facts(msgspec.Struct, frozen=True):
    """How to reach the API server; certificates and keys are PEM. `expires`: the header must be read again in time."""

    server: str
    authorization: str = ""
    expires: bool = False
    is_anonymous: bool = False
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


class _Answer(msgspec.Struct):
    """What the process prints."""

    facts: Facts | None = None
    refusal: str = ""


def read_apart(kubeconfig: Path | None) -> Facts:
    """Blocking, as long as an exec plugin takes."""
    command = [sys.executable, "-P", "-m", __name__, *([str(kubeconfig)] if kubeconfig else [])]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=False)
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{source_of(kubeconfig)} was not read within {_LONGEST_S:g} s; look at its exec plugin"
        ) from None
    except OSError as error:
        raise ConfigError(f"{source_of(kubeconfig)} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError:
        said = one_line(done.stderr.decode(errors="replace")[-300:]) or f"status {done.returncode}"
        raise ConfigError(
            f"{source_of(kubeconfig)} could not be read: the process that reads it printed: {said}"
        ) from None
    if answer.facts is None:
        raise ConfigError(answer.refusal)
    return answer.facts


def read(kubeconfig: Path | None) -> Facts:
    """Blocking; imports the package."""
    configuration = _from_file(kubeconfig) if kubeconfig else _from_cluster()
    try:
        return _facts(configuration)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source_of(kubeconfig)} cannot be used: {one_line(str(error))}") from None


def main() -> None:
    """The process: one line of JSON on the original standard output; other output goes to standard error."""
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        answer = _Answer(read(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except ConfigError as error:
        answer = _Answer(refusal=error.message)
    with answer_to:
        answer_to.write(msgspec.json.encode(answer))


def source_of(kubeconfig: Path | None) -> str:
    """Its name in error sentences."""
    return f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"


def _from_file(kubeconfig: Path) -> Any:  # noqa: ANN401 - the package's generated Configuration
    try:
        kubeconfig.read_bytes()
    except OSError as error:
        raise ConfigError(f"kubeconfig {kubeconfig} cannot be read: {error.strerror}; check --kubeconfig") from None
    from kubernetes import client, config

    configuration = client.Configuration()
    configuration.host = ""
    try:
        config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration, persist_config=False)
    except Exception as error:  # the reader also raises TypeError, AttributeError and errors of yaml
        raise ConfigError(
            f"kubeconfig {kubeconfig} cannot be used: {one_line(str(error)) or type(error).__name__}; "
            "check it with kubectl --kubeconfig"
        ) from None
    if not str(configuration.host).startswith(("http://", "https://")):
        raise ConfigError(
            f"kubeconfig {kubeconfig} names no server of the form https://HOST:PORT; set `server` of its cluster"
        )
    return configuration


def _from_cluster() -> Any:  # noqa: ANN401 - as above
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise ConfigError(
            "no kubeconfig was given and this process is not in a pod (KUBERNETES_SERVICE_HOST is not set); "
            "pass --kubeconfig FILE"
        )
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(
            f"the pod's service account cannot be used: {one_line(str(error))}; "
            "set automountServiceAccountToken or pass --kubeconfig FILE"
        ) from None
    return configuration


def _facts(configuration: Any) -> Facts:  # noqa: ANN401 - as above
    return Facts(
        server=str(configuration.host).rstrip("/"),
        authorization=_authorization(configuration),
        expires=configuration.refresh_api_key_hook is not None,
        is_anonymous=not configuration.api_key and not configuration.cert_file,
        verify=bool(configuration.verify_ssl),
        tls_server_name=configuration.tls_server_name or None,
        proxy=_proxy(configuration),
        ca=_content(configuration.ssl_ca_cert) or _encoded(configuration.ca_cert_data or ""),
        certificate=_content(configuration.cert_file),
        key=_content(configuration.key_file),
    )


def _authorization(configuration: Any) -> str:  # noqa: ANN401 - as above
    """The header; this runs the package's hook, which may read a file or run an exec plugin."""
    header = str(configuration.get_api_key_with_prefix(_HEADER) or "").strip()
    if not (header.isascii() and header.isprintable()):
        raise ConfigError("the token for the API server holds characters that no HTTP header may hold; check its file")
    return header


def _content(name: str | None) -> bytes:
    """The package writes inline data to temporary files, which are deleted with this process."""
    if not name:
        return b""
    content = Path(name).read_bytes()
    if not content:
        raise ValueError("a certificate or a key is empty")
    return content


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _proxy(configuration: Any) -> str | None:  # noqa: ANN401 - as above
    from kubernetes.client.rest import is_socks_proxy_url, should_bypass_proxies

    proxy = configuration.proxy
    if not proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    if is_socks_proxy_url(proxy):
        raise ConfigError(f"the proxy {one_line(proxy)} to the API server is a SOCKS proxy; use an HTTP proxy")
    return str(proxy)


if __name__ == "__main__":
    main()
