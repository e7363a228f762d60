"""The page of all log events: their keys, levels, loggers and fields, from the calls in the code.

In: the modules of deviceplugin. Out: `page`. Invariant: no event is left out silently: a call whose key cannot be found
in its module ends with an error that names the place.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "deviceplugin"
OWNER = ("pod", "uid", "container")
"""`agent.reporter.owner_fields`."""
LEVELS = ("debug", "info", "warning", "error", "exception")
_LOGGERS = ("log", "_log", "logger")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, order=True)
class LogEvent:
    """`fields` in the order of the call; of those that come as a mapping only the owner of a grant."""

    key: str
    level: str
    logger: str
    module: str
    fields: tuple[str, ...]


def page(generated: str) -> str:
    return f"""# Log events

{generated}

`vcuda agent` and `vcuda scheduler` log JSON, one object a line: `ts`, `level`, `logger`, `msg` and the fields of the
event. `msg` is the key, which is stable; its fields stand in brackets. `error` is the cause, as a sentence with what to
do; `pod` is NAMESPACE/NAME.
{"".join(_sections())}"""


def _sections() -> Iterator[str]:
    """One for each logger and level, with the fields behind each key."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for each in sorted(set(events())):
        keys = found.setdefault((each.logger, each.level), {})
        keys.setdefault(each.key, {}).update(dict.fromkeys(each.fields))
    for (logger, level), keys in sorted(found.items(), key=lambda item: (item[0][0], LEVELS.index(item[0][1]))):
        lines = (f"- `{key}({','.join(fields)})`\n" for key, fields in keys.items())
        yield f"\n## {logger} {level}\n\n{''.join(lines)}"


def events(package: Path = PACKAGE) -> Iterator[LogEvent]:
    for path in sorted(package.rglob("*.py")):
        if "wire" not in path.parts:
            yield from _of_module(path, package)


def _of_module(path: Path, package: Path) -> Iterator[LogEvent]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    usual = next(filter(None, map(_named_logger, ast.walk(tree))), "")
    module = str(path.relative_to(package.parent))
    for function, call in _calls(tree):
        assert isinstance(call.func, ast.Attribute)
        keys = set(_keys(call.args[0], function, tree)) if call.args else set()
        if not keys:
            raise ValueError(f"{module}:{call.lineno}: the key of this log event is not found; write it as a string")
        fields = tuple(name for each in call.keywords for name in _fields(each))
        level = "error" if call.func.attr == "exception" else call.func.attr
        if not usual:
            raise ValueError(f"{module}:{call.lineno}: the name of the logger is not found")
        yield from (LogEvent(key, level, usual, module, fields) for key in keys)


def _fields(given: ast.keyword) -> tuple[str, ...]:
    if given.arg:
        return () if given.arg == "exc_info" else (given.arg,)
    called = given.value.func if isinstance(given.value, ast.Call) else None
    return OWNER if isinstance(called, ast.Name) and called.id == "owner_fields" else ()


def _calls(tree: ast.Module) -> Iterator[tuple[_Function | None, ast.Call]]:
    """Each call of a logger with the innermost function around it."""
    around: dict[ast.AST, _Function] = {}
    for node in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(node, _Function):
            around.update(dict.fromkeys(ast.walk(node), node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            owner = node.func.value
            if (isinstance(owner, ast.Name) and owner.id in _LOGGERS) or _is_get_logger(owner):
                yield around.get(node), node


def _is_get_logger(node: ast.AST) -> bool:
    """structlog's function, or the class that imports structlog later."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in ("get_logger", "LazyLogger")


def _named_logger(node: ast.AST) -> str:
    """The name that a module gives to its logger."""
    if not (_is_get_logger(node) and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant)):
        return ""
    return str(node.args[0].value)


def _keys(said: ast.expr, function: _Function | None, tree: ast.Module) -> Iterator[str]:
    """The strings that an expression may be."""
    match said:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from _keys(said.body, function, tree)
            yield from _keys(said.orelse, function, tree)
        case ast.Name() if function is not None:
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            if said.id in names:
                yield from _passed(function, names.index(said.id), said.id, tree)
            else:
                yield from _assigned(said.id, function, tree)


def _passed(function: _Function, at: int, name: str, tree: ast.Module) -> Iterator[str]:
    """What the module's own calls give for a parameter."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called != function.name:
            continue
        index = at - isinstance(node.func, ast.Attribute)  # self
        given = [each.value for each in node.keywords if each.arg == name] or node.args[index : index + 1]
        yield from (text for each in given for text in _keys(each, None, tree))


def _assigned(name: str, function: _Function, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            yield from (
                text
                for to, value in pairs
                if isinstance(to, ast.Name) and to.id == name
                for text in _keys(value, None, tree)
            )
