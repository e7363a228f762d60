"""Reads a kubeconfig or the pod's service account with the `kubernetes` package, in a separate process.

In: the path of a kubeconfig, several that are merged, or None. Out: `Facts`, or a ConfigError of one sentence. The
package supports exec plugins, OIDC, token files and certificates. With its imports it needs 20 MiB and half a second
for one short use, so a short-lived process (`read_apart`) imports what that use needs. `read` does the same in the
calling process, with all of the package.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from deviceplugin.errors import ConfigError, one_line
from deviceplugin.kube.kubeconfig_files import ChosenContext, choose, unusable

Headers = tuple[tuple[str, str], ...]
_HEADER = "BearerToken"  # the package keeps the whole Authorization header under this key, also Basic
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LONGEST_S = 60.0  # an exec plugin may call a remote server


class Kubeconfigs(msgspec.Struct, frozen=True):
    """Files that are merged as kubectl merges KUBECONFIG: what is named first counts. Empty files say nothing.

    `context`: the context to use instead of the current one.
    """

    files: tuple[Path, ...]
    context: str = ""

    def __str__(self) -> str:
        return os.pathsep.join(map(str, self.files))


Source = Path | Kubeconfigs | None
"""One file, several, or the service account of the pod."""


class Facts(msgspec.Struct, frozen=True):
    """How to reach the API server; certificates and keys are PEM. `expires`: the header must be read again in time.

    `namespace`: the one of the context, or of the pod; empty where neither names one. `headers`: what each request has
    beside its authorization, such as whom it impersonates.
    """

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
    namespace: str = ""
    headers: Headers = ()


class _Answer(msgspec.Struct):
    """What the process prints."""

    facts: Facts | None = None
    refusal: str = ""


_START = f"""import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from {__name__} import main
main()
"""
"""Names the folder of the packages, which krew's plugin has beside it; a variable would reach exec plugins too."""


def read_apart(kubeconfig: Source, *, longest_s: float = _LONGEST_S) -> Facts:
    """Blocking, as long as an exec plugin takes."""
    asked = _several(kubeconfig)
    command = [sys.executable, "-P", "-c", _START, *([asked.context, *map(str, asked.files)] if asked else [])]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=longest_s, check=False)
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{source_of(kubeconfig)} was not read within {longest_s:g} s; look at its exec plugin"
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


def read(kubeconfig: Source) -> Facts:
    """Blocking; imports the package."""
    asked = _several(kubeconfig)
    try:
        return _from_files(asked) if asked else _facts(_from_cluster(), _pods_namespace())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source_of(kubeconfig)} cannot be used: {one_line(str(error))}") from None


def main() -> None:
    """The process: one line of JSON on the original standard output; other output goes to standard error."""
    _import_sparingly()
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        context, files = (sys.argv[1:2] or [""])[0], tuple(map(Path, sys.argv[2:]))
        answer = _Answer(read(Kubeconfigs(files, context) if files else None))
    except ConfigError as error:
        answer = _Answer(refusal=error.message)
    with answer_to:
        answer_to.write(msgspec.json.encode(answer))


def _import_sparingly() -> None:
    """`import kubernetes` imports every part of the package, and its configuration the client with all of its types.

    Only `kubernetes.config` is used here. The client is used when an OIDC token is renewed, and is imported then.
    """
    # Where it is installed, the package imports it, for seconds. Nothing is validated here.
    sys.modules["kubernetes_validate"] = None  # type: ignore[assignment]
    spec = find_spec("kubernetes")
    if spec is None or spec.submodule_search_locations is None:
        return
    package = ModuleType("kubernetes")
    package.__spec__, package.__path__ = spec, spec.submodule_search_locations
    sys.modules["kubernetes"] = package
    from kubernetes import client

    client.ApiClient = _late_client


def _late_client(**given: Any) -> Any:  # noqa: ANN401 - the package's generated ApiClient
    from kubernetes.client.api_client import ApiClient

    return ApiClient(**given)


def source_of(kubeconfig: Source) -> str:
    """Its name in error sentences."""
    return f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"


def _several(kubeconfig: Source) -> Kubeconfigs | None:
    return Kubeconfigs((kubeconfig,)) if isinstance(kubeconfig, Path) else kubeconfig


def _from_files(asked: Kubeconfigs) -> Facts:
    source = source_of(asked)
    chosen = choose(asked.files, asked.context, source=source)
    from kubernetes import client, config

    configuration = client.Configuration()
    configuration.host = ""
    if chosen.cluster.get("proxy-url"):
        configuration.no_proxy = ""  # of the environment, for the proxy of the environment
    try:
        with _errors() as said:
            config.load_kube_config_from_dict(
                chosen.document(), client_configuration=configuration, persist_config=False
            )
    except Exception as error:  # the reader also raises TypeError, AttributeError and errors of yaml
        raise unusable(source, one_line(str(error)) or type(error).__name__) from None
    if not str(configuration.host).startswith(("http://", "https://")):
        raise ConfigError(f"{source} names no server of the form https://HOST:PORT; set `server` of its cluster")
    facts = _facts(configuration, chosen.namespace, chosen.headers)
    if facts.is_anonymous and chosen.credentials:
        raise _without_credentials(chosen, said, source)
    return facts


@contextmanager
def _errors() -> Iterator[list[str]]:
    """What the package logs: a plugin that fails is not an exception of it, but credentials that are missing."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.root.addHandler(handler)
    try:
        yield said
    finally:
        logging.root.removeHandler(handler)


def _without_credentials(chosen: ChosenContext, said: Sequence[str], source: str) -> ConfigError:
    why = f": {one_line(' '.join(said))}" if said else ""
    plugin = chosen.user.get("exec")
    if plugin is None:
        return ConfigError(f"{chosen.credentials} of {source} give no credentials{why}; log in again, or correct them")
    hint = one_line(str(plugin.get("installHint") or "try it in a shell"))
    command = str(plugin.get("command"))
    if shutil.which(command) is None:
        # The package's own words depend on the machine: with a folder in PATH that this user may not read, they say
        # "Permission denied" where there is no such program.
        why = ": no such program can be run" + (" (PATH has none)" if "/" not in command else "")
    return ConfigError(f"the exec plugin {one_line(command)} of {source} gave no credentials{why}; {hint}")


def _pods_namespace() -> str:
    try:
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _from_cluster() -> Any:  # noqa: ANN401 - the package's generated Configuration
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


def _facts(configuration: Any, namespace: str, headers: Headers = ()) -> Facts:  # noqa: ANN401 - as above
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
        namespace=namespace,
        headers=headers,
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
    proxy = configuration.proxy
    if not proxy:
        return None
    from kubernetes.client.rest import is_socks_proxy_url, should_bypass_proxies

    if should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    if is_socks_proxy_url(proxy):
        raise ConfigError(f"the proxy {one_line(proxy)} to the API server is a SOCKS proxy; use an HTTP proxy")
    if not str(proxy).startswith(("http://", "https://")):
        raise ConfigError(
            f"the proxy {one_line(str(proxy))} to the API server is no http://HOST:PORT; use an HTTP proxy"
        )
    return str(proxy)


if __name__ == "__main__":
    main()
