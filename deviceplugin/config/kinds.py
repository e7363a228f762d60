"""What a setting may hold: for each kind, how it is written, how it is read, and how it is shown again.

In: text of a flag or an environment variable, or what YAML made of a key. Out: a value, or ValueError with a phrase
that completes the sentence "<where>: <phrase>". A key of the file must have the right YAML type; from there on the same
reader serves all three, so that they cannot differ.
"""

import enum
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
Word = TypeVar("Word", bound=enum.Enum)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of value; `what` says in words what is accepted, `yaml` which YAML types a file may use for it."""

    what: str
    metavar: str
    read: Callable[[str], T]
    show: Callable[[T], str] = str
    yaml: tuple[type, ...] = (str,)

    def read_yaml(self, value: object) -> T:
        """Reads what YAML made of a key; raises ValueError like `read`."""
        if type(value) not in self.yaml:
            raise ValueError(f"{_describe(value)} was found where {self.what} is wanted")
        return self.read(_as_text(value))


_YAML_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    name = _YAML_NAMES.get(type(value), "a date")
    return name if isinstance(value, list | dict) else f"{name} ({str(value)[:40]!r})"


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def _read_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text[:40]!r} holds characters that cannot be printed")
    return text


TEXT = Kind("text", "TEXT", _read_text)

# Go's strconv.ParseBool, as the lineage's flags have it.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _read_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return _BOOLEANS[text]


def _show_boolean(on: bool) -> str:
    return "true" if on else "false"


BOOLEAN = Kind("true or false", "[=true|false]", _read_boolean, _show_boolean, (bool,))


def _read_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"{text[:40]!r} is not a port; give a whole number from 0 (any free port) to 65535")
    return int(text)


PORT = Kind("a port number", "PORT", _read_port, str, (int,))


def _read_count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise ValueError(f"{text[:40]!r} is not a whole number from 1 to 999999")
    return int(text)


COUNT = Kind("a whole number above zero", "NUMBER", _read_count, str, (int,))


def read_path(text: str) -> Path:
    """A path that is safe in a sentence, a log line and a protocol buffer; raises ValueError."""
    if not text:
        raise ValueError(f"{text!r} is not a path")
    return Path(_read_text(text))


PATH = Kind("a path", "PATH", read_path)


def _read_optional_path(text: str) -> Path | None:
    return read_path(text) if text else None


def show_path(path: Path | None) -> str:
    """A path, or nothing."""
    return str(path) if path else ""


OPTIONAL_PATH = Kind("a path", "PATH", _read_optional_path, show_path)


def _read_absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text[:40]!r} is not an absolute path")
    return _read_text(text)


ABSOLUTE = Kind("an absolute path", "PATH", _read_absolute)


def _read_socket(text: str) -> Path | None:
    path = text.removeprefix("unix://") if text.startswith("unix://") else text.removeprefix("unix:")
    if "://" in path or path.startswith("unix:"):
        raise ValueError(f"{text[:60]!r} is not a unix socket; give its path or unix:///PATH")
    return read_path(path) if path else None


OPTIONAL_SOCKET = Kind("the path of a unix socket", "PATH", _read_socket, show_path)

_UNITS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600"}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST = 366 * 24 * 3600


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
    if seconds > _LONGEST:
        raise ValueError(f"{text[:40]!r} is longer than a year")
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


DURATION = Kind("a duration", "DURATION", _read_duration, show_duration, (int, float, str))


def _read_positive(text: str) -> float:
    seconds = _read_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text[:40]!r} must be longer than nothing")
    return seconds


PERIOD = Kind("a duration above zero", "DURATION", _read_positive, show_duration, (int, float, str))


def _read_whole_seconds(text: str) -> int:
    seconds = _read_positive(text)
    if not seconds.is_integer():
        raise ValueError(f"{text[:40]!r} is no whole number of seconds")
    return int(seconds)


SECONDS = Kind("a duration of whole seconds", "DURATION", _read_whole_seconds, show_duration, (int, str))


def _read_life(text: str) -> float:
    seconds = _read_seconds(text)
    if not 3600 <= seconds <= 30 * _LONGEST:
        raise ValueError(f"{text[:40]!r} must be at least an hour and at most 30 years")
    return float(seconds)


LIFE = Kind("a duration from an hour to 30 years", "DURATION", _read_life, show_duration, (int, float, str))

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _read_domain(text: str) -> str:
    if len(text) > 253 or not all(_LABEL.fullmatch(part) for part in text.split(".")):
        raise ValueError(f"{text[:60]!r} is not a DNS name such as tencent.com")
    return text


DOMAIN = Kind("a DNS name", "DOMAIN", _read_domain)


def _read_node_name(text: str) -> str:
    name = text.strip().lower()  # as kubelet does with its --hostname-override
    if len(name) > 253 or not all(_LABEL.fullmatch(part) for part in name.split(".")):
        raise ValueError(f"{text[:60]!r} is not the name of a node; give the name that `kubectl get nodes` shows")
    return name


NODE_NAME = Kind("the name of a node", "NAME", _read_node_name)


def _read_name(text: str) -> str:
    if len(text) > 253 or not all(_LABEL.fullmatch(part) for part in text.split(".")):
        raise ValueError(f"{text[:60]!r} is not the name of an object; give lower-case letters, digits and dashes")
    return text


NAME = Kind("the name of an object", "NAME", _read_name)
OPTIONAL_NAME = Kind("the name of an object", "NAME", lambda text: _read_name(text) if text else "")


def _read_host(text: str) -> str:
    try:
        if text.isprintable():  # the zone of an IPv6 address may hold anything
            return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        if len(text) <= 253 and all(_LABEL.fullmatch(part) for part in text.lower().split(".")):
            return text
    raise ValueError(f"{text[:60]!r} is neither an address nor a host name")


HOST = Kind("an address or a host name", "HOST", _read_host)


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(_read_host(item.strip()) for item in text.split(",") if item.strip())


NAMES = Kind("a list of addresses and host names", "HOST,...", _read_names, ",".join, (list, str))


def _read_subjects(text: str) -> tuple[str, ...]:
    found = tuple(name for item in text.split(",") if (name := item.strip()))
    if not found or not text.isprintable() or any(len(name) > 253 for name in found):
        raise ValueError(f"{text[:60]!r} names nobody; give names such as system:kube-scheduler, with commas between")
    return found


SUBJECTS = Kind("a list of names in certificates", "NAME,...", _read_subjects, ",".join, (list, str))


def _read_https(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https") or port == 0 or not text.isprintable():
        raise ValueError(f"{text[:60]!r} is not an address such as https://10.0.0.7:10250/pods")
    return text


URL = Kind("an https address", "URL", _read_https)

_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _read_labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        prefix, slash, name = key.rpartition("/")
        named = bool(_QUALIFIED.fullmatch(name)) and (not slash or _is_domain(prefix))
        if not equals or not named or (value and not _QUALIFIED.fullmatch(value)):
            raise ValueError(f"{item[:80]!r} is not a node label; give KEY=VALUE,KEY=VALUE")
        if key in labels:
            raise ValueError(f"the label {key!r} is given twice")
        labels[key] = value
    return labels


def _is_domain(text: str) -> bool:
    return len(text) <= 253 and all(_LABEL.fullmatch(part) for part in text.split("."))


def _show_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


LABELS = Kind("labels", "KEY=VALUE,...", _read_labels, _show_labels, (dict, str))


def _read_xids(text: str) -> str:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word != "all" and not re.fullmatch(r"[1-9][0-9]{0,8}", word):
            raise ValueError(f"{word[:40]!r} is not an XID; give a list such as 79,119")
    return ",".join(words)


XIDS = Kind("a list of XIDs", "XID,...", _read_xids, str, (list, int, str))


def choice(words: type[Word]) -> Kind[Word]:
    """One word of an enum."""
    allowed = [str(word.value) for word in words]

    def read(text: str) -> Word:
        if text not in allowed:
            raise ValueError(f"{text[:40]!r} is unknown; give {_one_of(allowed)}")
        return words(text)

    return Kind(_one_of(allowed), "|".join(allowed), read, lambda word: str(word.value))


def choices(words: type[Word]) -> Kind[tuple[Word, ...]]:
    """An ordered list of different words of an enum, at least one."""
    allowed = [str(word.value) for word in words]

    def read(text: str) -> tuple[Word, ...]:
        given = [item.strip() for item in text.split(",")]
        for item in given:
            if item not in allowed:
                raise ValueError(f"{item[:40]!r} is unknown; give a list of {_one_of(allowed)}")
        if len(set(given)) < len(given):
            raise ValueError(f"{text[:60]!r} names one of them twice")
        return tuple(words(item) for item in given)

    return Kind(f"a list of {_one_of(allowed)}", ",".join(allowed), read, _show_words, (list, str))


def _show_words(words: Sequence[enum.Enum]) -> str:
    return ",".join(str(word.value) for word in words)


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
