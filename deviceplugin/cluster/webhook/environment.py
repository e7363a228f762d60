"""The two environment variables that decide which GPUs a container sees.

In: a container of the pod's JSON. Out: the same container, changed in place. `LD_LIBRARY_PATH`, where the pod sets it,
must begin with the directory of vcuda's libraries. `NVIDIA_VISIBLE_DEVICES` of a GPU container is set by the agent
only. kubelet prefers the pod's own value, so a container could otherwise load the driver itself, or get all GPUs from a
container runtime that injects them. For such a runtime, a container without a GPU request gets `none`. Of a variable
written twice the last one counts. Values from `envFrom` are not visible here.
"""

from deviceplugin.cluster.webhook.pod_json import Json, JsonContainer, objects
from deviceplugin.cluster.webhook.resources import asks_any_of_vendor
from deviceplugin.model.mount import libraries_of, require_short_library_path

LIBRARY_PATH = "LD_LIBRARY_PATH"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_COMPAT = "compat32"
_NVIDIA = "nvidia.com/"


def put_our_libraries_first(container: JsonContainer) -> None:
    written = _value(container, _COMPAT)
    ours = libraries_of(written if isinstance(written, str) else "")
    for variable in _named(container, LIBRARY_PATH):
        own = variable.get("value")
        if own is not None and not isinstance(own, str):
            continue
        if "valueFrom" in variable or (own or "").split(":")[0] == ours:
            continue
        variable["value"] = f"{ours}:{own}" if own else ours


def leave_choice_to_the_agent(container: JsonContainer) -> None:
    if _named(container, _VISIBLE):
        rest = [each for each in objects(container.json, "env") if each.get("name") != _VISIBLE]
        container.json["env"] = rest


def library_path_is_hidden(container: JsonContainer) -> bool:
    """Whether `LD_LIBRARY_PATH` has a `valueFrom`, so that vcuda's directory cannot be put first."""
    return any("valueFrom" in variable for variable in _named(container, LIBRARY_PATH)[-1:])


def require_short_path(container: JsonContainer) -> None:
    """The agent refuses it too, when the pod is on a node."""
    value = _value(container, LIBRARY_PATH)
    require_short_library_path(value if isinstance(value, str) else "", container.what)


def preloaded(container: JsonContainer) -> str:
    """`LD_PRELOAD`, as far as the pod itself has it."""
    value = _value(container, "LD_PRELOAD")
    return value if isinstance(value, str) else ""


def hide_gpus(container: JsonContainer) -> None:
    """Leaves a container alone that requests GPUs of NVIDIA's own plugin."""
    if asks_any_of_vendor(container, _NVIDIA):
        return
    found = _named(container, _VISIBLE)
    if not found:
        container.json["env"] = [*objects(container.json, "env"), {"name": _VISIBLE, "value": "none"}]
    for variable in found:
        variable.pop("valueFrom", None)
        variable["value"] = "none"


def _named(container: JsonContainer, name: str) -> list[Json]:
    return [each for each in objects(container.json, "env") if each.get("name") == name]


def _value(container: JsonContainer, name: str) -> object:
    return next((each.get("value") for each in reversed(_named(container, name))), None)
