"""Which pods with HAMi's resources are taken for ours, the operator's choice in one word.

`nvidia.com/gpu` is also the resource of NVIDIA's own device plugin, so the word matters where both run.
"""

import enum


class HamiScope(enum.Enum):
    """The values are what the flag and the chart's value are written as.

    MARKED: pods in which something is HAMi's alone (memory, cores, priority, an annotation, its scheduler). ALL: also
    those that name a number of GPUs and nothing else.
    """

    OFF = "off"
    MARKED = "marked"
    ALL = "all"
