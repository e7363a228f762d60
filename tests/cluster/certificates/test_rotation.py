"""Leader and followers over the same Secret, with crashes, refusals and people who interfere."""

import asyncio
import contextlib
import datetime as dt

import pytest
from structlog.testing import capture_logs

from deviceplugin.cluster.certificates.issued import Rules, from_data, issue, renewed, to_data
from deviceplugin.cluster.certificates.keypair import KeyPair, is_signed_by, make_ca, read_chain, split
from deviceplugin.cluster.certificates.rotation import Rotation
from deviceplugin.errors import KubeConflictError, KubeError
from tests.cluster.certificates.api import ApiInMemory

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
RULES = Rules(("vcuda-scheduler",), 90 * DAY, 365 * DAY)


class Scene:
    """One API server, and as many replicas as a test starts."""

    def __init__(self) -> None:
        self.api = ApiInMemory()
        self.now = START

    def replica(self, configuration: str = "vcuda-scheduler") -> tuple[Rotation, list[KeyPair]]:
        shown: list[KeyPair] = []
        rotation = Rotation(
            self.api,
            namespace="gpu",
            secret="vcuda-scheduler-tls",
            configuration=configuration,
            rules=RULES,
            show=shown.append,
            now=lambda: self.now,
        )
        return rotation, shown

    @property
    def bundle(self) -> set[bytes]:
        assert self.api.bundles is not None
        assert len(set(self.api.bundles)) == 1
        return set(split(self.api.bundles[0]))

    @property
    def data(self) -> dict[str, bytes]:
        assert self.api.secret is not None
        return dict(self.api.secret.data)


async def begun() -> tuple[Scene, Rotation, list[KeyPair]]:
    """A leader after its first check."""
    scene = Scene()
    leader, shown = scene.replica()
    await leader.check(leads=True)
    return scene, leader, shown


async def test_the_leader_makes_what_the_others_serve() -> None:
    scene = Scene()
    leader, shown = scene.replica()
    follower, shown_there = scene.replica()
    await follower.check(leads=False)
    assert (shown_there, follower.ready.is_set()) == ([], False)
    await leader.check(leads=True)
    await follower.check(leads=False)
    assert shown == shown_there != []
    assert leader.ready.is_set()
    assert leader.issued is not None
    assert scene.bundle == {leader.issued.ca.chain}


async def test_nothing_is_signed_by_a_ca_that_is_not_in_the_bundle() -> None:
    scene, leader, shown = await begun()
    trusted = scene.bundle
    scene.api.refuse_bundle = 5
    scene.now += 250 * DAY
    for _ in range(5):
        with pytest.raises(KubeError):
            await leader.check(leads=True)
    assert (scene.bundle, len(shown)) == (trusted, 1)
    await leader.check(leads=True)
    assert any(is_signed_by(shown[-1].certificate, read_chain(each)[0]) for each in trusted)


async def test_a_new_leader_continues_where_the_old_one_died() -> None:
    scene = Scene()
    first, _ = scene.replica()
    await first.check(leads=True)
    scene.now += 250 * DAY
    await first.check(leads=True)
    second, shown = scene.replica()
    await second.check(leads=True)
    scene.now += 62 * DAY
    await second.check(leads=True)
    assert second.issued is not None
    assert is_signed_by(shown[-1].certificate, second.issued.ca.certificate)
    assert len(shown) == 2


async def test_an_emptied_bundle_is_filled_again() -> None:
    scene, leader, shown = await begun()
    wanted = scene.bundle
    scene.api.bundles = (b"", b"nonsense")
    await leader.check(leads=True)
    assert scene.bundle == wanted
    assert len(shown) == 1


async def test_a_configuration_that_comes_later_gets_its_bundle() -> None:
    scene = Scene()
    scene.api.bundles = None
    leader, shown = scene.replica()
    await leader.check(leads=True)
    assert len(shown) == 1
    scene.api.bundles = (b"", b"")
    await leader.check(leads=True)
    assert len(scene.bundle) == 1


async def test_a_lost_secret_is_written_again_unchanged() -> None:
    scene, leader, shown = await begun()
    trusted = scene.bundle
    assert scene.api.annotations == {"helm.sh/resource-policy": "keep"}, "helm upgrade deletes it otherwise"
    for malformed in (False, True):
        scene.api.secret = None
        if malformed:
            scene.api.put({"tls.crt": b"nonsense"})
        await leader.check(leads=True)
        follower, shown_there = scene.replica()
        await follower.check(leads=False)
        assert shown_there == shown
        assert scene.bundle == trusted


async def test_a_malformed_ca_crt_is_written_again_for_those_who_mount_it() -> None:
    scene, leader, shown = await begun()
    right = scene.data
    scene.api.put({**right, "ca.crt": b"nonsense"})
    await leader.check(leads=True)
    assert (scene.data, len(shown)) == (right, 1)


async def test_one_certificate_that_cannot_be_read_hides_no_other_one() -> None:
    """A CA that still signs what other replicas serve must stay trusted."""
    scene, leader, _ = await begun()
    scene.now += RULES.ca_life * 0.7
    await leader.check(leads=True)
    trusted = scene.bundle
    assert len(trusted) == 2
    broken = b"-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"
    scene.api.put({**scene.data, "ca.crt": broken + scene.data["ca.crt"]})
    other, _ = scene.replica()
    await other.check(leads=True)
    assert scene.bundle == trusted
    assert broken not in scene.data["ca.crt"]


async def test_a_webhook_configuration_that_cannot_be_written_keeps_no_certificate_from_being_served() -> None:
    """A policy or a tool that owns it refuses the caBundle; the Secret has a certificate that clients accept."""
    scene, _, shown = await begun()
    scene.api.bundles = (b"", b"")
    for error in (KubeError("a policy refuses it", code=403), KubeConflictError("it changed", code=409)):
        later, shown_there = scene.replica()
        scene.api.refuse_bundle, scene.api.refusal = 1, error
        with contextlib.suppress(KubeError):
            await later.check(leads=True)
        assert shown_there == shown
        assert later.ready.is_set()


async def test_a_follower_keeps_what_it_serves_where_the_secret_is_malformed() -> None:
    scene = Scene()
    leader, _ = scene.replica()
    follower, shown = scene.replica()
    await leader.check(leads=True)
    await follower.check(leads=False)
    scene.api.put({"tls.crt": b"nonsense"})
    await follower.check(leads=False)
    assert len(shown) == 1
    assert follower.ready.is_set()


async def test_who_must_restart_kube_scheduler_is_told_once() -> None:
    """Faults D4: it read the lost CA at its start, and knows no caBundle."""
    scene = Scene()
    with capture_logs() as logs:
        for secret in ("made", "made", None):
            if secret is None:
                scene.api.secret = None
            fresh, _ = scene.replica()
            await fresh.check(leads=True)
            await fresh.check(leads=True)
    (said,) = [each for each in logs if each["event"] == "ca_replaced"]
    assert "restart each kube-scheduler that calls the extender over TLS" in said["error"]
    assert said["command"] == "kubectl -n gpu rollout restart deployment/vcuda-scheduler"


async def test_where_secret_and_memory_are_lost_the_old_ca_stays_trusted_while_others_serve_its_certificate() -> None:
    scene, _, _ = await begun()
    old = scene.bundle
    scene.api.secret = None
    fresh, _ = scene.replica()
    await fresh.check(leads=True)
    assert old < scene.bundle
    scene.now += dt.timedelta(hours=2)
    await fresh.check(leads=True)
    assert old.isdisjoint(scene.bundle), "the others have read the new Secret"


async def test_two_leaders_at_once_end_with_one_secret() -> None:
    scene = Scene()
    one, shown = scene.replica()
    two, shown_there = scene.replica()
    await asyncio.gather(one.check(leads=True), two.check(leads=True))
    for replica in (one, two, one, two):
        await replica.check(leads=True)
    assert one.issued == two.issued
    assert shown[-1] == shown_there[-1]
    assert one.issued is not None
    assert one.issued.ca.chain in scene.bundle


async def test_a_failing_api_server_changes_nothing_and_is_asked_again() -> None:
    scene = Scene()
    rotation, shown = scene.replica()
    scene.api.refuse = 1
    running = asyncio.create_task(rotation.run(lambda: True, period=0.01))
    try:
        async with asyncio.timeout(10):
            await rotation.ready.wait()
    finally:
        running.cancel()
    assert len(shown) == 1


def data_of_version_0_1(*, coming: bool = False, promoted: bool = False) -> dict[str, bytes]:
    """A Secret as vcuda 0.1 wrote it: in steady state, with the next CA prepared, or after the change of the CA."""
    made = issue(RULES, START)
    other = make_ca(START, RULES.ca_life)
    former, cross = (other.chain, other.chain) if promoted else (b"", b"")
    return {
        "tls.crt": made.server.chain + cross,
        "tls.key": made.server.key,
        "ca.crt": made.ca.chain + (other.chain if coming else b"") + former,
        "authority.crt": made.ca.chain,
        "authority.key": made.ca.key,
        "coming.crt": other.chain if coming else b"",
        "coming.key": other.key if coming else b"",
        "former.crt": former,
        "cross.crt": cross,
    }


async def test_a_secret_of_version_0_1_is_served_and_renewed_without_an_outage() -> None:
    """In steady state, with the next CA prepared, and after the change of the CA."""
    for old in (data_of_version_0_1(), data_of_version_0_1(coming=True), data_of_version_0_1(promoted=True)):
        scene = Scene()
        scene.api.put(old)
        scene.api.bundles = (old["ca.crt"], old["ca.crt"])
        leader, shown = scene.replica()
        await leader.check(leads=True)
        assert shown[-1].chain == old["tls.crt"]
        assert set(split(old["authority.crt"])) <= scene.bundle
        for days in (30, 31, 60, 60, 65, 40, 61, 60):
            trusted = scene.bundle
            scene.now += days * DAY
            await leader.check(leads=True)
            certificate = shown[-1].certificate
            assert certificate.not_valid_after_utc > scene.now
            assert any(is_signed_by(certificate, read_chain(each)[0]) for each in trusted)
        assert len(shown) > 3
        assert {key for key, content in scene.data.items() if content} == set(to_data(from_data(scene.data)))


def test_a_replica_of_version_0_1_can_read_the_secret_while_both_versions_run() -> None:
    """That version requires that `authority.crt` signed `tls.crt`; everything else may be missing."""
    data = to_data(renewed(issue(RULES, START), RULES, START + 61 * DAY))
    assert is_signed_by(read_chain(data["tls.crt"])[0], read_chain(data["authority.crt"])[0])


async def test_where_the_chart_writes_the_bundle_its_ca_signs_until_it_expires_and_then_helm_is_asked_for() -> None:
    """Nobody here may tell the API server of another CA."""
    scene, _, _ = await begun()
    chart = scene.bundle
    leader, shown = scene.replica(configuration="")
    with capture_logs() as logs:
        for _ in range(12):
            scene.now += 30 * DAY
            await leader.check(leads=True)
            (ca,) = chart
            assert is_signed_by(shown[-1].certificate, read_chain(ca)[0])
            assert (set(split(scene.data["ca.crt"])), scene.bundle) == (chart, chart)
        scene.now += 30 * DAY
        await leader.check(leads=True)
        await leader.check(leads=True)
    assert scene.bundle == chart != set(split(scene.data["ca.crt"]))
    (said,) = [each for each in logs if each["event"] == "ca_replaced"]
    assert "run helm upgrade, which writes its ca.crt into the caBundle" in said["error"]
