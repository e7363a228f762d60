"""Who a bearer token belongs to, and what he may read: questions to the API server.

In: a token; an audience. Out: `Caller`, or None where the API server does not know the token; yes or no. Source:
authentication.k8s.io/v1 TokenReview and authorization.k8s.io/v1 SubjectAccessReview. A token with an audience is only
accepted for it, so a token made for vcuda is of no use elsewhere.
"""

from dataclasses import dataclass, field

import msgspec

from deviceplugin.kube.structs import Json, decode
from deviceplugin.kube.transport import Transport, group_path

_TOKENS = group_path("authentication.k8s.io/v1", "tokenreviews")
_ACCESS = group_path("authorization.k8s.io/v1", "subjectaccessreviews")


class _User(Json):
    """status.user of a TokenReview."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Json):
    """status of a TokenReview."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] | None = None


class _TokenReview(Json):
    """A TokenReview's answer."""

    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(Json):
    """status of a SubjectAccessReview."""

    allowed: bool = False


class _AccessReview(Json):
    """A SubjectAccessReview's answer."""

    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


@dataclass(frozen=True, slots=True)
class Caller:
    """A user as the API server knows him."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)


class AccessReviews:
    """Raises KubeError where the API server gives no answer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def caller_of(self, token: str, *, audience: str) -> Caller | None:
        """The token's user; without `audience` it must be valid for the API server itself."""
        spec: dict[str, object] = {"token": token}
        if audience:
            spec["audiences"] = [audience]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        answer = await self._transport.request("POST", _TOKENS, what="review a token", body=msgspec.json.encode(review))
        status = decode(_TokenReview, answer, what="the review of a token").status
        if not status.authenticated or (audience and audience not in (status.audiences or ())):
            return None
        user = status.user
        return Caller(user.username, user.uid, tuple(user.groups or ()), user.extra or {})

    async def may_list_pods(self, caller: Caller, namespace: str) -> bool:
        """Whether the caller may list the pods of a namespace; empty: of all."""
        attributes = {"verb": "list", "resource": "pods", "version": "v1", "namespace": namespace}
        return await self._is_allowed(caller, resourceAttributes=attributes)

    async def may_get(self, caller: Caller, path: str) -> bool:
        """Whether a ClusterRole allows the caller a path that is not one of the API server's (`nonResourceURLs`)."""
        return await self._is_allowed(caller, nonResourceAttributes={"verb": "get", "path": path})

    async def _is_allowed(self, caller: Caller, **attributes: dict[str, str]) -> bool:
        user = {"user": caller.name, "uid": caller.uid, "groups": caller.groups, "extra": caller.extra}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**user, **attributes},
        }
        body = msgspec.json.encode(review)
        answer = await self._transport.request("POST", _ACCESS, what="review an access", body=body)
        return decode(_AccessReview, answer, what="the review of an access").status.allowed
