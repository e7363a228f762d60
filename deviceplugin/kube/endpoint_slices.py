"""Where the pods behind a Service are, by the node on which each runs.

In: the namespace and the name of a Service. Out: the address of one ready pod for each node, from the Service's
EndpointSlices (discovery.k8s.io/v1). Addresses are those that the API server gives, never what a node says of itself.
"""

from dataclasses import dataclass

from deviceplugin.kube.structs import Json, Object, Page, decode
from deviceplugin.kube.transport import Transport, group_path

_GROUP = "discovery.k8s.io/v1"
_PAGE = "500"


class _Conditions(Json):
    """conditions of an endpoint; not said is ready."""

    ready: bool | None = None


class _Endpoint(Json):
    """One pod."""

    addresses: list[str] | None = None
    node_name: str | None = None
    conditions: _Conditions | None = None


class _Port(Json):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class _Slice(Object):
    """An EndpointSlice."""

    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address and a port."""

    host: str
    port: int

    def url(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{path}"


async def addresses_by_node(transport: Transport, namespace: str, service: str) -> dict[str, Address]:
    """Raises KubeError where the API server gives no answer."""
    path = group_path(_GROUP, "namespaces", namespace, "endpointslices")
    query = {"labelSelector": f"kubernetes.io/service-name={service}", "limit": _PAGE}
    found: dict[str, Address] = {}
    while True:
        body = await transport.request("GET", path, what=f"list the endpoints of {service}", query=query)
        page = decode(Page, body, what="a list of endpoints")
        for item in page.items or ():
            found.update(_addresses(decode(_Slice, item, what="an EndpointSlice")))
        token = page.metadata.continue_ if page.metadata is not None else None
        if not token:
            return found
        query = {**query, "continue": token}


def _addresses(item: _Slice) -> dict[str, Address]:
    port = next((each.port for each in item.ports or () if each.port), None)
    ready = (each for each in item.endpoints or () if each.conditions is None or each.conditions.ready is not False)
    return {
        each.node_name: Address(each.addresses[0], port) for each in ready if port and each.node_name and each.addresses
    }
