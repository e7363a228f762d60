"""What a setting may hold: for each type, how it is written, how it is read, and how it is shown again.

In: the text of a flag or an environment variable, or what YAML made of a key. Out: a value, or ValueError with a phrase
that completes the sentence "<where>: <phrase>". A key of the file must have the right YAML type; then its text is read
by the same reader as a flag's, so that flag, variable and file cannot differ.
"""

import enum
import ipaddress
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import click

T = TypeVar("T")
Word = TypeVar("Word", bound=enum.Enum)

_YAML_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "text"}


class SettingType(click.ParamType[T]):
    """One type of value. `what` says in words what is accepted, `yaml` which YAML types the file may use for it."""

    def __init__(
        self,
        what: str,
        metavar: str,
        read: Callable[[str], T],
        show: Callable[[T], str] = str,
        yaml: tuple[type, ...] = (str,),
    ) -> None:
        self.name = self.what = what
        self.metavar = metavar
        self.read = read
        self.show = show
        self.yaml = yaml

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self.read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def text_of(self, value: object) -> str:
        """What a flag would hold, from what YAML made of a key; ValueError where the YAML type is another."""
        if type(value) not in self.yaml:
            raise ValueError(f"expected {self.what}, found {_describe(value)}")
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            return ",".join(map(str, value))
        if isinstance(value, dict):
            return ",".join(f"{key}={entry}" for key, entry in value.items())
        return str(value)


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return f"{_YAML_NAMES.get(type(value), 'a date')} ({str(value)[:40]!r})"


def matching(form: str, phrase: str, *, length: int = 253) -> Callable[[str], str]:
    """A reader of texts of one form; `phrase` follows the text in the error."""
    pattern = re.compile(form, re.ASCII)

    def read(text: str) -> str:
        if len(text) > length or pattern.fullmatch(text) is None:
            raise ValueError(f"{text[:60]!r} {phrase}")
        return text

    return read


def _items(text: str) -> list[str]:
    return [word for item in text.split(",") if (word := item.strip())]


def _read_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text[:40]!r} holds characters that cannot be printed")
    return text


TEXT = SettingType("text", "TEXT", _read_text)
ANYTHING = SettingType("anything", "TEXT", str, str, (bool, int, float, str, list, dict))

# Go's strconv.ParseBool, because gpu-manager's flags are read so.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _read_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return _BOOLEANS[text]


BOOLEAN = SettingType("true or false", "[=true|false]", _read_boolean, lambda on: "true" if on else "false", (bool,))


def _read_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"{text[:40]!r} is not a port; give a whole number from 0 (any free port) to 65535")
    return int(text)


PORT = SettingType("a port number", "PORT", _read_port, str, (int,))
_read_count = matching(r"[1-9][0-9]{0,5}", "is not a whole number from 1 to 999999")
COUNT = SettingType("a whole number above zero", "NUMBER", lambda text: int(_read_count(text)), str, (int,))


def read_path(text: str) -> Path:
    """A path that is safe in a sentence, a log line and a protocol buffer; raises ValueError."""
    if not text:
        raise ValueError(f"{text!r} is not a path")
    return Path(_read_text(text))


def show_path(path: Path | None) -> str:
    """A path, or nothing."""
    return str(path) if path else ""


def _read_absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text[:40]!r} is not an absolute path")
    return _read_text(text)


def _read_socket(text: str) -> Path | None:
    path = text.removeprefix("unix://") if text.startswith("unix://") else text.removeprefix("unix:")
    if "://" in path or path.startswith("unix:"):
        raise ValueError(f"{text[:60]!r} is not a unix socket; give its path or unix:///PATH")
    return read_path(path) if path else None


PATH = SettingType("a path", "PATH", read_path)
OPTIONAL_PATH = SettingType("a path", "PATH", lambda text: read_path(text) if text else None, show_path)
ABSOLUTE = SettingType("an absolute path", "PATH", _read_absolute)
OPTIONAL_SOCKET = SettingType("the path of a unix socket", "PATH", _read_socket, show_path)

_UNITS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600"}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_YEAR_S = 366 * 24 * 3600


def _read_seconds(text: str) -> Decimal:
    if re.fullmatch(_NUMBER, text):
        seconds = Decimal(text)
    elif text and not _PART.sub("", text):
        seconds = sum((Decimal(number) * Decimal(_UNITS[unit]) for number, unit in _PART.findall(text)), Decimal())
    else:
        raise ValueError(f"{text[:40]!r} is not a duration; give seconds (30) or units (500ms, 5s, 1m30s)")
    return round(seconds, 9)


def _read_duration(text: str) -> float:
    seconds = _read_seconds(text)
    if seconds > _YEAR_S:
        raise ValueError(f"{text[:40]!r} is longer than a year")
    return float(seconds)


def _read_period(text: str) -> float:
    seconds = _read_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text[:40]!r} must be longer than 0s")
    return seconds


def _read_whole_seconds(text: str) -> int:
    seconds = _read_period(text)
    if not seconds.is_integer():
        raise ValueError(f"{text[:40]!r} is not a whole number of seconds")
    return int(seconds)


def _read_life(text: str) -> float:
    seconds = _read_seconds(text)
    if not 3600 <= seconds <= 30 * _YEAR_S:
        raise ValueError(f"{text[:40]!r} must be at least an hour and at most 30 years")
    return float(seconds)


def show_duration(seconds: float) -> str:
    """Seconds as Go writes durations, to the nanosecond and without needless zero parts: `1m30s`, `500ms`."""
    exact = round(Decimal(seconds), 9)
    if not exact:
        return "0s"
    if exact < 1:
        return f"{_plain(exact * 1000)}ms"
    minutes, rest = divmod(exact, 60)
    hours, minutes = divmod(minutes, 60)
    return "".join(f"{_plain(part)}{unit}" for part, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if part)


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_SECONDS = (int, float, str)
DURATION = SettingType("a duration", "DURATION", _read_duration, show_duration, _SECONDS)
PERIOD = SettingType("a duration above zero", "DURATION", _read_period, show_duration, _SECONDS)
SECONDS = SettingType("a duration of whole seconds", "DURATION", _read_whole_seconds, show_duration, (int, str))
LIFE = SettingType("a duration from an hour to 30 years", "DURATION", _read_life, show_duration, _SECONDS)

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_read_name = matching(_DNS_NAME, "is not the name of an object; give lower-case letters, digits and dashes")
_read_node = matching(
    rf"\s*(?i:{_DNS_NAME})\s*", "is not the name of a node; give the name that `kubectl get nodes` shows"
)
_read_namespace = matching(_DNS_NAME, "is not the name of a namespace")
_read_label = matching(
    rf"(?:(?=[^/]{{1,253}}/){_DNS_NAME}/)?{_WORD}=(?:{_WORD})?",
    "is not a node label; give KEY=VALUE,KEY=VALUE",
    length=400,
)
_read_host_name = matching(rf"(?i:{_DNS_NAME})", "is neither an address nor a host name")


def _read_host(text: str) -> str:
    try:
        if text.isprintable():  # the zone of an IPv6 address may hold anything
            return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    return _read_host_name(text)


def _read_subjects(text: str) -> tuple[str, ...]:
    found = tuple(_items(text))
    if not found or not text.isprintable() or any(len(name) > 253 for name in found):
        raise ValueError(f"{text[:60]!r} holds no names; give names such as system:kube-scheduler, separated by commas")
    return found


def _read_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https") or port == 0 or not text.isprintable():
        raise ValueError(f"{text[:60]!r} is not an address such as https://10.0.0.7:10250/pods")
    return text


def _read_labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, _, value = _read_label(item).partition("=")
        if key in labels:
            raise ValueError(f"the label {key!r} is given twice")
        labels[key] = value
    return labels


def _read_xids(text: str) -> str:
    words = [word.lower() for word in _items(text)]
    for word in words:
        if word != "all" and not re.fullmatch(r"[1-9][0-9]{0,8}", word):
            raise ValueError(f"{word[:40]!r} is not an XID; give a list such as 79,119")
    return ",".join(words)


DOMAIN = SettingType("a DNS name", "DOMAIN", matching(_DNS_NAME, "is not a DNS name such as tencent.com"))
NAME = SettingType("the name of an object", "NAME", _read_name)
OPTIONAL_NAME = SettingType("the name of an object", "NAME", lambda text: _read_name(text) if text else "")
# kubelet strips and lowers its --hostname-override too.
NODE_NAME = SettingType("the name of a node", "NAME", lambda text: _read_node(text).strip().lower())
RESOURCE_NAME = SettingType(
    "the name of a resource", "NAME", matching(rf"{_DNS_NAME}/{_WORD}", "is not a resource such as nvidia.com/gpu")
)
NAMESPACES = SettingType(
    "a list of namespaces",
    "NAME,...",
    lambda text: frozenset(map(_read_namespace, _items(text))),
    lambda names: ",".join(sorted(names)),
    (list, str),
)
HOST = SettingType("an address or a host name", "HOST", _read_host)
HOSTS = SettingType(
    "a list of addresses and host names",
    "HOST,...",
    lambda text: tuple(map(_read_host, _items(text))),
    ",".join,
    (list, str),
)
SUBJECTS = SettingType("a list of names in certificates", "NAME,...", _read_subjects, ",".join, (list, str))
URL = SettingType("an https address", "URL", _read_url)
LABELS = SettingType(
    "labels",
    "KEY=VALUE,...",
    _read_labels,
    lambda labels: ",".join(f"{key}={value}" for key, value in labels.items()),
    (dict, str),
)
XIDS = SettingType("a list of XIDs", "XID,...", _read_xids, str, (list, int, str))


def choice(words: type[Word]) -> SettingType[Word]:
    """One word of an enum."""
    allowed = [str(word.value) for word in words]

    def read(text: str) -> Word:
        if text not in allowed:
            raise ValueError(f"{text[:40]!r} is unknown; give {_one_of(allowed)}")
        return words(text)

    return SettingType(_one_of(allowed), "|".join(allowed), read, lambda word: str(word.value))


def choices(words: type[Word]) -> SettingType[tuple[Word, ...]]:
    """An ordered list of different words of an enum, at least one."""
    allowed = [str(word.value) for word in words]

    def read(text: str) -> tuple[Word, ...]:
        given = [item.strip() for item in text.split(",")]
        for item in given:
            if item not in allowed:
                raise ValueError(f"{item[:40]!r} is unknown; give a list of {_one_of(allowed)}")
        if len(set(given)) < len(given):
            raise ValueError(f"{text[:60]!r} names a word twice")
        return tuple(words(item) for item in given)

    def show(given: tuple[Word, ...]) -> str:
        return ",".join(str(word.value) for word in given)

    return SettingType(f"a list of {_one_of(allowed)}", ",".join(allowed), read, show, (list, str))


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
