"""Parts of an object that the server keeps as they were written, such as `fieldsV1` and opaque parameters.

In: JSON that Python's `json` cannot make: nested thousands deep, or with half a UTF-16 pair. Out: a text to put into
the object in its place, and documents in which it has become that JSON again.
"""

import json
import re
from functools import partial
from typing import Any

from aiohttp import web

_MARK = "verbatim:"
_MARKED = re.compile(rf'"{_MARK}((?:[^"\\]|\\.)*)"')


def verbatim(text: str) -> str:
    return _MARK + text


def nested(levels: int) -> str:
    """As `fieldsV1` may be."""
    return verbatim('{"f:a":' * levels + "{}" + "}" * levels)


def written(document: Any) -> str:
    return _MARKED.sub(lambda found: json.loads(f'"{found[1]}"'), json.dumps(document))


answer = partial(web.json_response, dumps=written)
