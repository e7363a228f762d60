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
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

T = TypeVar("T")
Word = TypeVar("Word", bound=enum.Enum)

_YAML_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "text"}
_LARGEST = 1 << 20


def as_text(value: object) -> str:
    """A value as a flag would hold it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return ",".join(map(as_text, value)) if isinstance(value, list | tuple) else str(value)


class SettingType(click.ParamType[T]):
    """One type of value.

    `read` makes it of a text, or raises ValueError with a phrase that completes "<where>: <phrase>". `what` says in
    words what is accepted, `yaml` which YAML types the file may use for it.
    """

    def __init__(
        self,
        what: str,
        metavar: str,
        read: Callable[[str], T],
        show: Callable[[T], str] = as_text,
        yaml: tuple[type, ...] = (str,),
    ) -> None:
        self.name = self.what = what
        self.metavar = metavar
        self.read = read
        self.show = show
        self.yaml = yaml

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def text_of(self, value: object) -> str:
        """What a flag would hold, from what YAML made of a key; ValueError if the YAML type is another."""
        if type(value) not in self.yaml:
            raise ValueError(f"expected {self.what}, found {_describe(value)}")
        return as_text(value)


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return f"{_YAML_NAMES.get(type(value), 'a date')} ({str(value)[:40]!r})"


def matching(form: str, phrase: str, *, length: int = 253) -> Callable[[str], str]:
    """A reader of printable texts of one form; `phrase` follows the text in the error."""
    pattern = re.compile(form, re.ASCII)

    def read(text: str) -> str:
        if len(text) > length or not text.isprintable() or pattern.fullmatch(text) is None:
            raise ValueError(f"{text[:60]!r} {phrase}")
        return text

    return read


def number(what: str, metavar: str, first: int, last: int, phrase: str) -> SettingType[int]:
    """A whole number; `phrase` follows the text in the error."""

    def read(text: str) -> int:
        if not re.fullmatch(rf"[0-9]{{1,{len(str(last))}}}", text) or not first <= int(text) <= last:
            raise ValueError(f"{text[:40]!r} {phrase}")
        return int(text)

    return SettingType(what, metavar, read, yaml=(int,))


def choice(words: type[Word]) -> SettingType[Word]:
    """One word of an enum."""
    by_text = {as_text(word): word for word in words}
    *others, last = by_text
    what = f"{', '.join(others)} or {last}" if others else last

    def read(text: str) -> Word:
        if text not in by_text:
            raise ValueError(f"{text[:40]!r} is unknown; give {what}")
        return by_text[text]

    return SettingType(what, "|".join(by_text), read)


def choices(words: type[Word]) -> SettingType[tuple[Word, ...]]:
    """An ordered list of different words of an enum, at least one."""
    one = choice(words)

    def read(text: str) -> tuple[Word, ...]:
        given = tuple(one.read(item.strip()) for item in text.split(","))
        if len(set(given)) < len(given):
            raise ValueError(f"{text[:60]!r} names a word twice")
        return given

    return SettingType(f"a list of {one.what}", one.metavar.replace("|", ","), read, yaml=(list, str))


def pairs(text: str, read: Callable[[str], str], what: str) -> dict[str, str]:
    """KEY=VALUE,KEY=VALUE, each as `read` takes it; ValueError for a key that is given twice."""
    found: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, _, value = read(item).partition("=")
        if key in found:
            raise ValueError(f"the {what} {key!r} is given twice")
        found[key] = value
    return found


def _items(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


# Go's strconv.ParseBool, because gpu-manager's flags are read so.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _read_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return _BOOLEANS[text]


def read_path(text: str) -> Path:
    """A path that is safe in a sentence, a log line and a protocol buffer; raises ValueError."""
    if not text:
        raise ValueError(f"{text!r} is not a path")
    return Path(_read_printable(text))


def read_content(path: Path) -> bytes:
    """The content of a file; a ValueError whose phrase follows the path if that is impossible or over 1 MiB."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > _LARGEST:
        raise ValueError("is larger than 1 MiB")
    return content


def _read_socket(text: str) -> Path | None:
    path = text.removeprefix("unix://") if text.startswith("unix://") else text.removeprefix("unix:")
    if "://" in path or path.startswith("unix:"):
        raise ValueError(f"{text[:60]!r} is not a unix socket; give its path or unix:///PATH")
    return read_path(path) if path else None


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


def _duration(what: str, *rules: tuple[Callable[[Decimal], bool], str]) -> SettingType[float]:
    """Seconds; a rule is what must hold, and the phrase that follows the text if it does not."""

    def read(text: str) -> float:
        seconds = _read_seconds(text)
        for holds, phrase in rules:
            if not holds(seconds):
                raise ValueError(f"{text[:40]!r} {phrase}")
        return float(seconds)

    return SettingType(what, "DURATION", read, show_duration, (int, float, str))


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


_UP_TO_A_YEAR = (lambda seconds: seconds <= _YEAR_S, "is longer than a year")
_ABOVE_ZERO = (lambda seconds: seconds > 0, "must be longer than 0s")
_WHOLE = (lambda seconds: seconds % 1 == 0, "is not a whole number of seconds")

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NODE_LABEL = rf"(?:(?=[^/]{{1,253}}/){_DNS_NAME}/)?{_WORD}=(?:{_WORD})?"
_read_printable = matching(".*", "holds characters that cannot be printed", length=1 << 20)
read_resource = matching(rf"{_DNS_NAME}/{_WORD}", "is not a resource such as nvidia.com/gpu")
_read_name = matching(_DNS_NAME, "is not the name of an object; give lower-case letters, digits and dashes")
_read_node = matching(rf"(?i:{_DNS_NAME})", "is not the name of a node; give the name that `kubectl get nodes` shows")
_read_label = matching(_NODE_LABEL, "is not a node label; give KEY=VALUE,KEY=VALUE", length=400)
_read_host_name = matching(rf"(?i:{_DNS_NAME})", "is neither an address nor a host name")
_read_gpu = matching(
    r"GPU-[0-9A-Za-z-]{1,80}|[0-9]{1,3}", "is neither a UUID such as GPU-... nor a minor number such as 0"
)
_XID = "[1-9][0-9]{0,8}"
_NO_XID = "is not an XID; give a list such as 79,119"


def _read_host(text: str) -> str:
    try:
        if text.isprintable():  # the zone of an IPv6 address may hold anything
            return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    return _read_host_name(text)


def _read_subjects(text: str) -> tuple[str, ...]:
    found = _items(text)
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


def _xids(read: Callable[[str], str]) -> SettingType[str]:
    def read_all(text: str) -> str:
        return ",".join(map(read, _items(text.lower())))

    return SettingType("a list of XIDs", "XID,...", read_all, yaml=(list, int, str))


TEXT = SettingType("text", "TEXT", _read_printable)
ANYTHING = SettingType("anything", "TEXT", str, yaml=(bool, int, float, str, list, dict))
BOOLEAN = SettingType("true or false", "[=true|false]", _read_boolean, yaml=(bool,))
PORT = number("a port number", "PORT", 0, 65535, "is not a port; give a whole number from 0 (any free port) to 65535")
COUNT = number("a whole number above zero", "NUMBER", 1, 999_999, "is not a whole number from 1 to 999999")
PATH = SettingType("a path", "PATH", read_path)
OPTIONAL_PATH = SettingType("a path", "PATH", lambda text: read_path(text) if text else None)
ABSOLUTE = SettingType("an absolute path", "PATH", matching("(?:/.*)?", "is not an absolute path", length=4096))
OPTIONAL_SOCKET = SettingType("the path of a unix socket", "PATH", _read_socket)
DURATION = _duration("a duration", _UP_TO_A_YEAR)
PERIOD = _duration("a duration above zero", _UP_TO_A_YEAR, _ABOVE_ZERO)
SECONDS = _duration("a duration of whole seconds", _UP_TO_A_YEAR, _ABOVE_ZERO, _WHOLE)
DOMAIN = SettingType("a DNS name", "DOMAIN", matching(_DNS_NAME, "is not a DNS name such as tencent.com"))
NAME = SettingType("the name of an object", "NAME", _read_name)
OPTIONAL_NAME = SettingType("the name of an object", "NAME", lambda text: _read_name(text) if text else "")
# kubelet strips and lowers its --hostname-override too.
NODE_NAME = SettingType("the name of a node", "NAME", lambda text: _read_node(text.strip()).lower())
HOST = SettingType("an address or a host name", "HOST", _read_host)
SUBJECTS = SettingType("a list of names in certificates", "NAME,...", _read_subjects, yaml=(list, str))
URL = SettingType("an https address", "URL", _read_url)
OPTIONAL_URL = SettingType("an http or https address", "URL", lambda text: _read_url(text) if text else "")
LABELS = SettingType[Mapping[str, str]](
    "labels", "KEY=VALUE,...", lambda text: pairs(text, _read_label, "label"), yaml=(dict, str)
)
GPUS = SettingType(
    "a list of GPUs by UUID or minor number",
    "GPU,...",
    lambda text: tuple(map(_read_gpu, _items(text))),
    yaml=(list, int, str),
)
XIDS = _xids(matching(_XID, _NO_XID))
XIDS_OR_ALL = _xids(matching(f"{_XID}|all", _NO_XID))


def type_of(default: object) -> SettingType[Any]:
    """The type of a setting whose default tells it: a boolean, a word of an enum, a path or none."""
    if isinstance(default, bool):
        return BOOLEAN
    if isinstance(default, enum.Enum):
        return choice(type(default))
    return OPTIONAL_PATH if default is None else PATH
