"""The options that say which cluster is asked and how, the same for all commands that ask one.

In: flags and environment, as kubectl has them. Out: a `Connection`, or ConfigError. Nothing is read or called here but
the file of a token.
"""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from deviceplugin.cli.command import ConnectionOption, NamespaceName, misused
from deviceplugin.config.param_types import DURATION, show_duration
from deviceplugin.errors import ConfigError
from deviceplugin.kube.kubeconfig import Kubeconfigs
from deviceplugin.structs import replace

Function = TypeVar("Function", bound=Callable[..., Any])
_USUAL_TIMEOUT_S = 15.0


class Connection(msgspec.Struct, frozen=True):
    """`request_timeout` is 0 for none. `namespace`: as given; empty for that of the context."""

    kubeconfig: str | None = None
    context: str = ""
    namespace: str = ""
    request_timeout: float = _USUAL_TIMEOUT_S
    url: str | None = None
    token_file: str | None = None
    token: str = ""
    ca_file: str | None = None
    insecure: bool = False
    scheduler_namespace: str = "kube-system"
    service: str = "vcuda-scheduler"
    port: int = 8443
    may_have_url: bool = True

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Connection":
        """Takes its own out of the options of a command."""
        given = {name: options.pop(name) for name in cls.__struct_fields__ if name in options}
        known = {name: value for name, value in given.items() if value is not None}
        return cls(**{"token": os.environ.get("VCUDA_TOKEN", ""), **known})

    @property
    def is_for_one_namespace(self) -> bool:
        """Not for all that begin as `-n 'team-*'` says."""
        return not self.namespace.endswith("*")

    def check(self) -> None:
        """Raises what is wrong with the command line."""
        if not self.url and (self.ca_file or self.insecure):
            raise misused("--ca-file and --insecure go with --url; for the API server the kubeconfig names the CA")
        if self.url and (self.kubeconfig or self.context):
            raise misused("--url asks the scheduler without the API server; leave out --kubeconfig and --context")
        if self.url and not _is_https(self.url):
            raise misused(f"--url: {self.url[:80]!r} is not an address such as https://10.0.0.7:8443")

    def through_api_server(self, command: str) -> "Connection":
        """For a command that asks the API server itself, and so takes no URL of a scheduler."""
        if self.url:
            raise misused(f"{command} asks the API server; leave out --url and give a kubeconfig")
        return replace(self, may_have_url=False)

    def kubeconfigs(self) -> Kubeconfigs | None:
        """The files that kubectl would read; None for the service account of the pod."""
        if self.kubeconfig:
            return Kubeconfigs((Path(self.kubeconfig),), self.context)
        listed = [Path(each).expanduser() for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
        usual = [path for path in [_home_kubeconfig()] if path is not None and path.exists()]
        found = tuple(path for path in listed or usual if path.exists())
        if found:
            return Kubeconfigs(found, self.context)
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not self.context:
            return None
        named = (
            f"no file of KUBECONFIG ({':'.join(map(str, listed))}) exists"
            if listed
            else ("KUBECONFIG is not set, and there is no ~/.kube/config")
        )
        or_url = ", or --url https://HOST:8443 of the scheduler" if self.may_have_url else ""
        raise ConfigError(f"no kubeconfig: {named}; pass --kubeconfig FILE{or_url}")

    def bearer_token(self) -> str:
        """What is shown to the scheduler; empty for nothing."""
        if self.token_file is None:
            text = self.token
        else:
            try:
                text = Path(self.token_file).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise ConfigError(f"--token-file: {self.token_file} cannot be read: {why}") from None
        token = text.strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            where = "VCUDA_TOKEN" if self.token_file is None else f"--token-file: {self.token_file}"
            raise ConfigError(f"{where} does not hold a token: a token is one line of ASCII letters")
        return token


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is open
        return False


def _home_kubeconfig() -> Path | None:
    try:
        return Path.home() / ".kube" / "config"
    except RuntimeError:  # a user without a home
        return None


def _options() -> Iterator[Callable[[Function], Function]]:
    option, file = functools.partial(click.option, cls=ConnectionOption), click.Path(dir_okay=False)
    yield option(
        "--kubeconfig",
        type=file,
        help="Kubeconfig file; default: the files of KUBECONFIG, ~/.kube/config, in a pod its service account.",
    )
    yield option("--context", default="", help="Context of the kubeconfig; default: the current one.")
    yield option(
        "--request-timeout",
        type=DURATION,
        metavar="DURATION",
        default=show_duration(_USUAL_TIMEOUT_S),
        help="Longest wait for one answer, such as 1s or 2m; 0: no limit. Default: 15s.",
    )
    yield option("--url", help="URL of the scheduler, such as https://10.0.0.7:8443, in the place of the API server.")
    yield option(
        "--token-file",
        type=file,
        help="File with a token that shows the scheduler which pods you may read about; also VCUDA_TOKEN.",
    )
    yield option("--ca-file", type=file, help="With --url: PEM file with the CA of its certificate.")
    yield option("--insecure", is_flag=True, help="With --url: do not verify its certificate.")
    yield option(
        "--scheduler-namespace",
        default="kube-system",
        show_default=True,
        envvar="VCUDA_SCHEDULER_NAMESPACE",
        help="Namespace of the scheduler's service; also VCUDA_SCHEDULER_NAMESPACE.",
    )
    yield option("--service", default="vcuda-scheduler", show_default=True, help="The scheduler's service.")
    yield option("--port", type=int, default=8443, show_default=True, help="HTTPS port of the scheduler's pods.")


def connected(command: Function) -> Function:
    """Gives a click command the options, and its function one `connection`."""
    text = "Namespace; default: that of the context, or default."
    return click.option("-n", "--namespace", type=NamespaceName(), default="", help=text)(connected_to_all(command))


def connected_to_all(command: Function) -> Function:
    """The same without a namespace, for what belongs to none."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's
        connection = Connection.of(kwargs)
        connection.check()
        return command(*args, connection=connection, **kwargs)

    decorated: Any = call
    for option in reversed(list(_options())):
        decorated = option(decorated)
    found: Function = decorated
    return found


def all_namespaces_option(command: Function) -> Function:
    text = "Pods of all namespaces; -n 'team-*': of those that begin with team-."
    return click.option("-A", "--all-namespaces", is_flag=True, help=text)(command)
