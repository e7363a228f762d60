"""Replicas over one Secret: at the same start, over lost and edited Secrets, with an API server that is away."""

import asyncio
import json

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from deviceplugin.cluster.certificates.issuer import CA_LIFE, CERTIFICATE_LIFE, CHECKS_UNTIL_RESTORED
from deviceplugin.cluster.certificates.keypair import make_ca, make_certificate
from deviceplugin.errors import ConfigError, KubeError
from deviceplugin.scheduler.serving_certificate import repeat
from tests.cluster.certificates.scene import DAY, NAMES, START, cluster, keys


async def test_the_first_replica_makes_the_ca_and_each_signs_its_own_certificate_with_it() -> None:
    async with cluster() as scene:
        one, two = scene.replica(), scene.replica()
        for replica in (one, two):
            await replica.check()
        assert one.ready.is_set()
        assert two.ready.is_set()
        assert scene.trusts(one)
        assert scene.trusts(two)
        assert one.tls.shown != two.tls.shown
        assert set(scene.data) == {"ca.crt", "ca.key"}, "no key of a serving certificate leaves its replica"
        assert scene.secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        shown = one.tls.shown.certificate
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(each.value) for each in names] == [*NAMES]
        assert one.ca is not None
        assert one.ca.certificate.not_valid_after_utc == START + CA_LIFE
        assert shown.not_valid_after_utc == START + CERTIFICATE_LIFE


async def test_two_replicas_that_find_no_secret_at_once_sign_with_one_ca() -> None:
    async with cluster() as scene:
        one, two = scene.replica(), scene.replica()
        scene.api.faults.slow(seconds=0.2, times=2, method="GET", path="secrets")
        await asyncio.gather(one.check(), two.check())
        assert sum(each[0] == "POST" and "/secrets" in each[1] for each in scene.api.requests) == 2
        assert one.ca == two.ca
        assert scene.trusts(one)
        assert scene.trusts(two)


async def test_a_certificate_is_renewed_after_two_thirds_of_its_life_and_nothing_is_written() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        await replica.check()
        first, writes = replica.tls.shown, scene.writes
        scene.now += CERTIFICATE_LIFE * 0.66
        await replica.check()
        assert replica.tls.shown == first
        scene.now += CERTIFICATE_LIFE * 0.01
        await replica.check()
        assert replica.tls.shown != first
        assert scene.trusts(replica)
        assert scene.writes == writes


async def test_a_ca_in_its_last_year_is_named_and_no_certificate_outlives_it() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        with capture_logs() as logs:
            await replica.check()
            scene.now = START + CA_LIFE - 366 * DAY
            await replica.check()
        assert [each for each in logs if each["event"] == "ca_ends_soon"] == []
        for days in (200, 100, 30, 1):
            scene.now = START + CA_LIFE - days * DAY
            with capture_logs() as logs:
                await replica.check()
            (said,) = [each for each in logs if each["event"] == "ca_ends_soon"]
            assert f"Secret gpu/vcuda-scheduler-tls ends at {START + CA_LIFE}" in said["error"]
            assert replica.tls.shown.certificate.not_valid_after_utc <= START + CA_LIFE
            assert scene.trusts(replica)


async def test_a_secret_that_is_gone_while_a_replica_runs_is_missed_for_five_minutes_and_then_restored() -> None:
    """Renewals go on meanwhile, and no client notices."""
    async with cluster() as scene:
        replica = scene.replica()
        await replica.check()
        before = scene.data
        scene.delete()
        await replica.check()
        scene.put(before)
        await replica.check()
        scene.delete()
        with capture_logs() as logs:
            for _ in range(CHECKS_UNTIL_RESTORED - 1):
                scene.now += CERTIFICATE_LIFE / 10
                await replica.check()
                assert scene.trusts(replica)
        assert not scene.has_secret
        (said,) = [each for each in logs if each["event"] == "ca_secret_missing"]
        assert said["error"] == "Secret gpu/vcuda-scheduler-tls is gone; it is restored in 5 minutes"
        await replica.check()
        assert scene.data == before
        assert scene.secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "Helm would delete it"


async def test_to_replace_the_ca_one_deletes_the_secret_and_restarts_a_replica() -> None:
    async with cluster() as scene:
        running = scene.replica()
        await running.check()
        old = scene.data
        scene.delete()
        await running.check()
        restarted = scene.replica()
        with capture_logs() as logs:
            await restarted.check()
        assert scene.data["ca.crt"] != old["ca.crt"]
        assert scene.trusts(restarted)
        assert not scene.trusts(running)
        await running.check()
        assert scene.trusts(running), "at its next check"
        (said,) = [each for each in logs if each["event"] == "ca_replaced"]
        assert said["error"].startswith("Secret gpu/vcuda-scheduler-tls gets a new CA; restart each kube-scheduler")
        assert said["command"] == "kubectl -n gpu rollout restart deployment/vcuda-scheduler"


async def test_a_first_ca_replaces_none_and_a_restart_changes_nothing() -> None:
    async with cluster() as scene:
        with capture_logs() as logs:
            await scene.replica().check()
            writes = scene.writes
            await scene.replica().check()
        assert [each for each in logs if each["log_level"] == "warning"] == []
        assert scene.writes == writes


async def test_where_helm_writes_the_bundle_a_replica_never_does_and_a_new_ca_asks_for_helm_upgrade() -> None:
    async with cluster() as scene:
        made = make_ca(START, CA_LIFE)
        scene.put(keys(made))
        scene.configure(made.chain)
        with capture_logs() as logs:
            await scene.replica("").check()
            assert [each for each in logs if each["log_level"] == "warning"] == []
            scene.delete()
            await scene.replica("").check()
        assert scene.bundles == [made.chain]
        (said,) = [each for each in logs if each["event"] == "ca_replaced"]
        assert "run helm upgrade, which writes its ca.crt into the caBundle, and restart" in said["error"]


DAMAGES: dict[str, dict[str, bytes]] = {
    "it holds no certificate in PEM": {"ca.crt": b""},
    "it holds no private key in PEM without a passphrase": {"ca.key": b"nonsense"},
    "the key does not belong to the certificate": {"ca.key": make_ca(START, DAY).key},
    "the certificate is not a CA's": keys(make_certificate(NAMES, make_ca(START, DAY), START, DAY)),
}


async def test_a_damaged_secret_of_vcuda_is_written_again_from_memory_or_with_a_new_ca(
    subtests: pytest.Subtests,
) -> None:
    for problem, damage in DAMAGES.items():
        with subtests.test(problem):
            async with cluster() as scene:
                running = scene.replica()
                await running.check()
                right, shown = scene.data, running.tls.shown
                for replica, is_same in ((running, True), (scene.replica(), False)):
                    scene.put({**right, **damage})
                    with capture_logs() as logs:
                        await replica.check()
                    (said,) = [each["error"] for each in logs if each["event"] == "ca_secret_unusable"]
                    assert said.startswith("ca.crt and ca.key of Secret gpu/vcuda-scheduler-tls cannot be used: ")
                    assert problem in said
                    assert scene.trusts(replica)
                    assert (scene.data == right) is is_same
                assert running.tls.shown == shown


async def test_a_secret_that_vcuda_has_not_made_stays_as_it_is_and_is_one_sentence() -> None:
    async with cluster() as scene:
        replica, fresh = scene.replica(), scene.replica()
        await replica.check()
        foreign = {"tls.crt": b"of another tool", "keystore.p12": b"\x00"}
        scene.put(foreign, labels={"app.kubernetes.io/name": "another"})
        for each in (replica, fresh):
            with pytest.raises(ConfigError, match=r"cannot be used: .*; vcuda has not made it and leaves it as it is"):
                await each.check()
        assert scene.data == foreign
        assert not fresh.ready.is_set()
        scene.now += CERTIFICATE_LIFE
        with pytest.raises(ConfigError):
            await replica.check()
        assert scene.trusts(replica), "from memory"


async def test_a_ca_that_somebody_puts_into_the_secret_is_used_by_all() -> None:
    async with cluster() as scene:
        replicas = [scene.replica() for _ in range(3)]
        for each in replicas[:2]:
            await each.check()
        other = make_ca(scene.now, 30 * DAY)
        scene.put(keys(other), labels={})
        for each in replicas:
            await each.check()
            assert scene.trusts(each)
        assert set(scene.bundles) == {other.chain}


async def test_while_the_api_server_is_away_a_replica_asks_again_and_says_so_once() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        with capture_logs() as logs:
            async with scene.api.refuse():
                running = asyncio.create_task(repeat(replica.check, 0.01))
                await asyncio.sleep(0.3)
                assert not replica.ready.is_set()
            async with asyncio.timeout(60):
                await replica.ready.wait()
        running.cancel()
        assert scene.trusts(replica)
        assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["certificate_check_failed"]


async def test_a_bundle_that_cannot_be_written_stops_no_certificate_and_is_written_at_the_next_check() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        scene.api.faults.fail(403, times=1, method="PATCH", path="mutatingwebhookconfigurations")
        with pytest.raises(KubeError):
            await replica.check()
        assert replica.ready.is_set()
        await replica.check()
        assert scene.trusts(replica)


async def test_a_bundle_that_somebody_empties_or_creates_anew_is_filled_again() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        await replica.check()
        shown = replica.tls.shown
        for bundles in ((b"", b"nonsense"), (b"",)):
            scene.configure(*bundles)
            await replica.check()
            assert scene.trusts(replica)
        scene.api.store.delete("mutatingwebhookconfigurations", "vcuda-scheduler")
        await replica.check()
        scene.configure(b"")
        await replica.check()
        assert scene.trusts(replica)
        assert replica.tls.shown == shown


async def test_no_private_key_is_in_a_log_or_a_representation() -> None:
    async with cluster() as scene:
        replica = scene.replica()
        with capture_logs() as logs:
            await replica.check()
            scene.put({**scene.data, "ca.crt": b"x"})
            await replica.check()
            scene.delete()
            await scene.replica().check()
        assert len(logs) > 3
        assert replica.ca is not None
        for key in (replica.ca.key, replica.tls.shown.key):
            assert key.decode().splitlines()[1] not in json.dumps(logs, default=str) + repr(replica)
