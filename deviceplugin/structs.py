"""`replace` of a value: a copy of a msgspec Struct with other fields.

In: a Struct, fields by name. Out: a new one; its `__post_init__` has run. It is msgspec's, of which mypy would check no
name and no type; that of dataclasses, which takes no Struct when it runs, has the same meaning and is checked.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = ["replace"]
