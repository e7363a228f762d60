"""Credentials that a program or an issuer gives: exec plugins and OIDC, by the `kubernetes` package.

In: the chosen context of a kubeconfig. Out: a `Login`, or a ConfigError of one sentence. With its imports the package
needs 20 MiB and half a second for one short use, so a short-lived process has it, and imports what that use needs.
Kubeconfigs with a token, a password or a certificate, and service accounts, need none of this (`credentials`).
"""

import logging
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from deviceplugin.errors import ConfigError, one_line
from deviceplugin.kube.kubeconfig import ChosenContext, unusable

LONGEST_S = 60.0  # an exec plugin may call a remote server
_HEADER = "BearerToken"  # the package keeps the whole Authorization header under this key


class Login(msgspec.Struct, frozen=True):
    """What was given: a header, or the PEM of a certificate and its key, or nothing."""

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""


class _Answer(msgspec.Struct):
    """What the process prints. `errors`: what the package logged; `failure`: why it could not use the context."""

    login: Login = Login()
    errors: list[str] = []
    failure: str = ""


_START = f"""import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from {__name__} import main
main()
"""
"""Names the folder of the packages, which krew's plugin has beside it; a variable would reach exec plugins too."""


def login(chosen: ChosenContext, *, source: str, longest_s: float = LONGEST_S) -> Login:
    """Blocking, as long as an exec plugin takes. `source` names the kubeconfig in sentences."""
    answer = _asked(chosen, source, longest_s)
    if answer.failure:
        raise unusable(source, answer.failure)
    if answer.login == Login():
        raise _without_credentials(chosen, answer.errors, source)
    return answer.login


def _asked(chosen: ChosenContext, source: str, longest_s: float) -> _Answer:
    command = [sys.executable, "-P", "-c", _START]
    document = msgspec.json.encode(chosen.document())
    try:
        done = subprocess.run(command, input=document, capture_output=True, timeout=longest_s, check=False)
        return msgspec.json.decode(done.stdout, type=_Answer)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{source} was not read within {longest_s:g} s; look at its exec plugin") from None
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError:
        said = one_line(done.stderr.decode(errors="replace")[-300:]) or f"status {done.returncode}"
        raise ConfigError(f"{source} could not be read: the process that reads it printed: {said}") from None


def _without_credentials(chosen: ChosenContext, errors: list[str], source: str) -> ConfigError:
    why = f": {one_line(' '.join(errors))}" if errors else ""
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


def main() -> None:
    """The process: a context on standard input, one line of JSON on standard output; the rest is standard error."""
    _import_sparingly()
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    document = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a plugin finds no terminal and no document there
    with answer_to:
        answer_to.write(msgspec.json.encode(_answer(msgspec.json.decode(document))))


def _answer(document: dict[str, Any]) -> _Answer:
    from kubernetes import client, config

    answer = _Answer(errors=[])
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: answer.errors.append(record.getMessage())  # type: ignore[method-assign]
    logging.root.addHandler(handler)
    configuration = client.Configuration()
    try:
        config.load_kube_config_from_dict(document, client_configuration=configuration, persist_config=False)
        answer.login = _login_of(configuration)
    except Exception as error:  # the package also raises TypeError, AttributeError and errors of yaml
        answer.failure = one_line(str(error)) or type(error).__name__
    return answer


def _login_of(configuration: Any) -> Login:  # noqa: ANN401 - the package's generated Configuration
    """The package writes a plugin's certificate to files, which are deleted with this process."""
    header = str(configuration.get_api_key_with_prefix(_HEADER) or "")
    files = (configuration.cert_file, configuration.key_file)
    certificate, key = (Path(each).read_bytes() if each else b"" for each in files)
    return Login(header, certificate, key)


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


if __name__ == "__main__":
    main()
