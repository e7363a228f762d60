"""One context of kubeconfig files, chosen and merged as kubectl does it.

In: the paths of the files, and a context or the current one. Out: `ChosenContext`: its cluster and its user, with
absolute paths and without empty values, or a ConfigError. What is named first counts; a path is relative to the file
that names it. Invariant: what kubectl would honour and vcuda cannot is refused with a sentence. Not here: what a
context says of the API server (`credentials`).
"""

import base64
import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import yaml

from deviceplugin.errors import ConfigError, one_line

Json = dict[str, Any]
_PROVIDERS = ("gcp", "oidc")  # those that the package knows
_MODES = ("Never", "IfAvailable")
_HEADER_LETTERS = "!#$&'*+-.^_`|~"  # those that client-go does not escape, beside letters and digits
_CREDENTIALS = ("exec", "auth-provider", "username", "password", "token", "tokenFile")


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


class ChosenContext(msgspec.Struct, frozen=True):
    """`headers`: what each request has beside its credentials."""

    context: str
    namespace: str
    cluster: Json
    user: Json
    headers: tuple[tuple[str, str], ...]

    @property
    def credentials(self) -> str:
        """What the user is known by except for certificates, which go with https alone; empty for nothing."""
        return " and ".join(each for each in _CREDENTIALS if each in self.user)

    @property
    def is_login(self) -> bool:
        """Whether a program or an issuer gives the credentials."""
        return not {"exec", "auth-provider"}.isdisjoint(self.user)

    def document(self) -> Json:
        """A kubeconfig with nothing else in it."""
        context = {"cluster": "it", "user": "it"}
        return {
            "current-context": "it",
            "contexts": [{"name": "it", "context": context}],
            "clusters": [{"name": "it", "cluster": self.cluster}],
            "users": [{"name": "it", "user": self.user}],
        }


class _NamedEntry(NamedTuple):
    content: Json
    folder: Path


def source_of(kubeconfig: Source) -> str:
    """Its name in error sentences."""
    return f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"


def choose(kubeconfigs: Kubeconfigs) -> ChosenContext:
    """Blocking."""
    source, documents = source_of(kubeconfigs), _documents(kubeconfigs)
    contexts = _entries(documents, "contexts", "context", source)
    name = _chosen(documents, contexts, kubeconfigs)
    found = contexts[name].content
    cluster = _named(documents, "cluster", str(found.get("cluster") or ""), source)
    asked = str(found.get("user") or "")
    user = _named(documents, "user", asked, source) if asked else _NamedEntry({}, Path())
    return _usable(name, str(found.get("namespace") or ""), cluster, user, source)


def namespaces(kubeconfigs: Kubeconfigs) -> tuple[str, ...]:
    """Those that contexts of the same cluster name, the chosen one's first. Blocking."""
    documents = _documents(kubeconfigs)
    contexts = _entries(documents, "contexts", "context", source_of(kubeconfigs))
    chosen = contexts[_chosen(documents, contexts, kubeconfigs)].content
    found = [chosen, *(each.content for each in contexts.values())]
    named = [str(each.get("namespace", "")) for each in found if each.get("cluster") == chosen.get("cluster")]
    return tuple(dict.fromkeys(filter(None, named)))


def _documents(kubeconfigs: Kubeconfigs) -> list[tuple[Path, Json]]:
    return [(path, _document(path)) for path in kubeconfigs.files]


def _chosen(
    documents: Sequence[tuple[Path, Json]], contexts: Mapping[str, _NamedEntry], kubeconfigs: Kubeconfigs
) -> str:
    current = (str(each.get("current-context") or "") for _, each in documents)
    name = kubeconfigs.context or next((each for each in current if each), "")
    source = source_of(kubeconfigs)
    if not name:
        raise ConfigError(f"{source} names no current context; set `current-context`")
    if name not in contexts:
        known = ", ".join(contexts) or "none"
        raise ConfigError(f"{source} has no context {one_line(name)!r}; it has: {one_line(known)}")
    return name


def _document(path: Path) -> Json:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {error.strerror}; check --kubeconfig") from None
    try:
        found = _decoded(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise unusable(f"kubeconfig {path}", one_line(str(error))) from None
    if found is not None and not isinstance(found, dict):
        raise unusable(f"kubeconfig {path}", "it is no kubeconfig")
    return found or {}


def _decoded(content: bytes) -> Any:  # noqa: ANN401 - any YAML or JSON
    try:
        return json.loads(content)  # JSON may be indented by tabs, and YAML may not
    except ValueError:
        return yaml.safe_load(content)


def unusable(source: str, why: str) -> ConfigError:
    """For what kubectl would not take either. `why`: one line."""
    return ConfigError(f"{source} cannot be used: {why}; check it with kubectl --kubeconfig")


def _named(documents: Sequence[tuple[Path, Json]], what: str, name: str, source: str) -> _NamedEntry:
    found = _entries(documents, f"{what}s", what, source)
    if name not in found:
        raise ConfigError(f"{source} has no {what} {one_line(name)!r}, which its context names; add it, or correct it")
    return found[name]


def _entries(documents: Sequence[tuple[Path, Json]], part: str, key: str, source: str) -> Mapping[str, _NamedEntry]:
    every: dict[str, _NamedEntry] = {}
    for path, document in documents:
        here: dict[str, _NamedEntry] = {}
        for each in _listed(document, part, source):
            name, content = str(each.get("name") or ""), each.get(key) or {}
            if not isinstance(content, dict):
                raise unusable(source, f"{key} of {one_line(name)!r} in {part} is no mapping")
            if name in here:
                raise unusable(source, f"{path} has several {part} named {one_line(name)!r}")
            here[name] = _NamedEntry(_filled(content), path.absolute().parent)
        every |= {name: entry for name, entry in here.items() if name not in every}
    return every


def _listed(document: Json, part: str, source: str) -> Iterator[Json]:
    entries = document.get(part) or []
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise unusable(source, f"`{part}` is no list of mappings")
    yield from entries


def _filled(content: Json) -> Json:
    """Without what is empty: client-go cannot tell it from what is left out."""
    return {key: value for key, value in content.items() if value not in (None, "", [], {})}


def _usable(context: str, namespace: str, cluster: _NamedEntry, user: _NamedEntry, source: str) -> ChosenContext:
    reach = _with_paths(cluster, ("certificate-authority",), source)
    who = _with_paths(user, ("client-certificate", "client-key"), source)
    if "tokenFile" in who:
        who.pop("token", None)  # the package would take the token
        who["tokenFile"] = _beside(user.folder, who["tokenFile"], "tokenFile", source)
    if "exec" in who:
        who["exec"] = _plugin(who, user.folder, source)
        reach = _with_certificate(reach, source) if who["exec"].get("provideClusterInfo") else reach
    _check(reach, who, source)
    if "auth-provider" in who:
        who["auth-provider"] = _with_issuers_ca(who["auth-provider"])
    compression = (("Accept-Encoding", "identity"),) if reach.get("disable-compression") else ()
    return ChosenContext(context, namespace, reach, who, (*compression, *_impersonation(who, source)))


def _with_paths(entry: _NamedEntry, keys: Sequence[str], source: str) -> Json:
    """Data counts before the file of the same name."""
    found = dict(entry.content)
    for key in keys:
        if f"{key}-data" in found:
            found.pop(key, None)
        elif key in found:
            found[key] = _beside(entry.folder, found[key], key, source)
    return found


def _beside(folder: Path, path: object, key: str, source: str) -> str:
    if not isinstance(path, str):
        raise unusable(source, f"`{key}` is no path")
    return str(folder / path)


def _plugin(user: Json, folder: Path, source: str) -> Json:
    plugin = user["exec"]
    if not isinstance(plugin, dict):
        raise unusable(source, "`exec` is no mapping")
    mode = plugin.get("interactiveMode") or "IfAvailable"
    if mode not in _MODES:
        raise ConfigError(
            f"{source} wants interactiveMode: {one_line(str(mode))} for its exec plugin, which vcuda runs without a "
            "terminal; write IfAvailable or Never"
        )
    if "auth-provider" in user:
        raise ConfigError(f"{source} has exec and auth-provider for one user; leave out one of them")
    command = plugin.get("command")
    local = isinstance(command, str) and "/" in command
    return {**_filled(plugin), "command": _beside(folder, command, "command", source)} if local else _filled(plugin)


def _with_certificate(cluster: Json, source: str) -> Json:
    """Plugins are given the certificate and not its path."""
    if "certificate-authority" not in cluster:
        return cluster
    path = Path(cluster["certificate-authority"])
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise unusable(source, f"{path} cannot be read: {error.strerror}") from None
    rest = {key: value for key, value in cluster.items() if key != "certificate-authority"}
    return {**rest, "certificate-authority-data": data}


def _check(cluster: Json, user: Json, source: str) -> None:
    authority = {"certificate-authority", "certificate-authority-data"} & cluster.keys()
    if authority and cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(
            f"{source} has insecure-skip-tls-verify and a certificate authority, which would not count; leave out one"
        )
    if "auth-provider" not in user:
        return
    provider = user["auth-provider"]
    if not isinstance(provider, dict) or not isinstance(provider.get("config") or {}, dict):
        raise unusable(source, "`auth-provider` is no mapping")
    name = provider.get("name")
    if name not in _PROVIDERS:
        raise ConfigError(
            f"{source} wants credentials of the auth-provider {one_line(str(name))!r}, which vcuda and kubectl do not "
            "have; use its exec plugin"
        )


def _with_issuers_ca(provider: Json) -> Json:
    """Without one the package does not look at the certificate of whom it sends the refresh token."""
    given = _filled(provider.get("config") or {})
    if provider["name"] != "oidc" or {"idp-certificate-authority", "idp-certificate-authority-data"} & given.keys():
        return provider
    from certifi import where  # seldom needed, and the package has it

    system = ssl.get_default_verify_paths().cafile or where()
    return {**provider, "config": {**given, "idp-certificate-authority": system}}


def _impersonation(user: Json, source: str) -> Iterator[tuple[str, str]]:
    """As client-go writes them."""
    if "as" not in user:
        for key in ("as-uid", "as-groups", "as-user-extra"):
            if key in user:
                raise ConfigError(f"{source} has {key} without `as`; add the user to impersonate, or leave it out")
        return
    yield "Impersonate-User", _value(user["as"], "as", source)
    if "as-uid" in user:
        yield "Impersonate-Uid", _value(user["as-uid"], "as-uid", source)
    for group in _values(user.get("as-groups", []), "as-groups", source):
        yield "Impersonate-Group", group
    extra = user.get("as-user-extra", {})
    if not isinstance(extra, dict):
        raise unusable(source, "`as-user-extra` is no mapping")
    for key, values in extra.items():
        for each in _values(values, "as-user-extra", source):
            yield f"Impersonate-Extra-{quote(str(key), safe=_HEADER_LETTERS)}", each


def _values(found: object, key: str, source: str) -> list[str]:
    if not isinstance(found, list):
        raise unusable(source, f"`{key}` holds {one_line(str(found))!r} where a list is needed")
    return [_value(each, key, source) for each in found]


def _value(found: object, key: str, source: str) -> str:
    text = str(found)
    if not text.isprintable():
        raise ConfigError(f"{source} has characters in `{key}` that no HTTP header may hold; correct it")
    return text
