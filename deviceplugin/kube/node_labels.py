"""What the labels of a GPU node say.

In: the inventory, and labels that the operator adds. Out: label keys and values that the API server accepts. A node of
several models or sizes has `mixed` where one word would be a lie; the inventory annotation has the details. The
lineage's `gaia.tencent.com/gpu-model` has the second word of the first GPU's name (`Tesla P40` gives `P40`).
"""

import re
from collections.abc import Mapping, Sequence

from deviceplugin.model.gpu import Inventory
from deviceplugin.model.units import MIB

LINEAGE_MODEL = "gaia.tencent.com/gpu-model"
MIXED = "mixed"
_MOST = 63
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")


def gpu_labels(inventory: Inventory, *, domain: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Model, count, MiB of one GPU, driver and CUDA version; `extra` wins where it names the same key."""
    labels: dict[str, str] = {}
    if inventory.gpus:
        labels = {
            f"{domain}/gpu-model": label_value(_one([gpu.model for gpu in inventory.gpus])),
            f"{domain}/gpu-count": str(len(inventory.gpus)),
            f"{domain}/gpu-memory": _one([str(gpu.memory_bytes // MIB) for gpu in inventory.gpus]),
            f"{domain}/gpu-driver": label_value(inventory.driver.version),
            f"{domain}/gpu-cuda": "{}.{}".format(*inventory.driver.cuda),
            LINEAGE_MODEL: label_value(_second_word(inventory.gpus[0].model)),
        }
    return labels | {key: label_value(value) for key, value in extra.items()}


def label_value(text: str) -> str:
    """At most 63 letters, digits, `-`, `_` and `.`, the first and last a letter or digit; anything else becomes `-`."""
    return _REFUSED.sub("-", text).strip("-_.")[:_MOST].strip("-_.")


def _one(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else MIXED


def _second_word(model: str) -> str:
    words = model.split()
    return words[1] if len(words) > 1 else model
