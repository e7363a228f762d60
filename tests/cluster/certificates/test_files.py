"""Certificates in files: shown when they change, in whatever way they do, and never when they are broken."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, make_ca, make_certificate
from deviceplugin.errors import ConfigError
from deviceplugin.scheduler.serving_certificate import CertificateFiles, client_ca, repeat, server_files
from tests.waiting import until

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.UTC)
CA = make_ca(NOW, 30 * DAY)
OTHER = make_ca(NOW, 30 * DAY)
BROKEN = OTHER.chain[:100] + OTHER.chain[200:]


def certificate() -> KeyPair:
    return make_certificate(["vcuda-scheduler"], CA, NOW, DAY)


class Mounted:
    """A Secret as kubelet mounts it: links to a directory that is swapped as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data") / name)

    def put(self, chain: bytes, key: bytes) -> None:
        self._number += 1
        fresh = self._folder / f"..{self._number}"
        fresh.mkdir()
        (fresh / "tls.crt").write_bytes(chain)
        (fresh / "tls.key").write_bytes(key)
        link = self._folder / "..data_tmp"
        link.symlink_to(fresh.name)
        link.rename(self._folder / "..data")

    def read(self, show: Callable[[KeyPair], None]) -> CertificateFiles:
        return server_files(self._folder / "tls.crt", self._folder / "tls.key", show=show)


@asynccontextmanager
async def watched(files: CertificateFiles) -> AsyncIterator[None]:
    files.load()
    running = asyncio.create_task(repeat(files.check, 0.01))
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()


async def test_a_renewed_certificate_is_shown_once(tmp_path: Path) -> None:
    mounted, shown = Mounted(tmp_path), list[KeyPair]()
    first, second = certificate(), certificate()
    mounted.put(first.chain, first.key)
    async with watched(mounted.read(shown.append)):
        mounted.put(second.chain, second.key)
        await until(lambda: len(shown) == 2)
        await asyncio.sleep(0.1)
    assert shown == [first, second]


async def test_what_is_broken_or_gone_leaves_the_old_one_and_what_follows_is_shown(tmp_path: Path) -> None:
    mounted, shown = Mounted(tmp_path), list[KeyPair]()
    first, second = certificate(), certificate()
    mounted.put(first.chain, first.key)
    async with watched(mounted.read(shown.append)):
        mounted.put(first.chain, second.key)
        await asyncio.sleep(0.05)
        (tmp_path / "..data").unlink()
        await asyncio.sleep(0.05)
        assert shown == [first]
        mounted.put(second.chain, second.key)
        await until(lambda: len(shown) == 2)
    assert shown[-1] == second


async def test_another_client_ca_is_used_and_a_malformed_one_leaves_the_old_one(tmp_path: Path) -> None:
    path, used = tmp_path / "clients.crt", list[bytes]()
    tls = ServerTls(certificate())

    def trust(content: bytes) -> None:
        tls.trust(content)
        used.append(content)

    path.write_bytes(CA.chain)
    files = client_ca(path, trust=trust)
    with structlog.testing.capture_logs() as said:
        async with watched(files):
            for broken, sentence in ((b"", "cannot be used"), (BROKEN, "cannot be used"), (None, "cannot be read")):
                path.write_bytes(broken) if broken is not None else path.unlink()
                await until(lambda sentence=sentence: said[-1].get("error", "").find(sentence) > 0)  # type: ignore[misc]
                await asyncio.sleep(0.05)
            (tmp_path / "next").write_bytes(OTHER.chain)
            (tmp_path / "next").replace(path)  # else it may be read while it is still empty
            await until(lambda: used[-1] == OTHER.chain)
    assert used == [CA.chain, OTHER.chain]
    assert [each["error"] for each in said if each["log_level"] == "warning"] == [
        f"--client-ca-file: {path} cannot be used: it holds no certificate in PEM",
        f"{path} cannot be read: No such file or directory",
    ]


def test_files_that_cannot_be_used_end_the_start_with_one_sentence(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    with pytest.raises(ConfigError, match=r"tls.crt cannot be read: No such file or directory"):
        mounted.read(lambda _: None).load()
    for chain, key, missing in ((b"", b"", "certificate"), (CA.chain, b"x", "private key")):
        mounted.put(chain, key)
        sentence = rf"tls.crt and .*tls.key cannot be used: it holds no {missing} in PEM"
        with pytest.raises(ConfigError, match=sentence):
            mounted.read(lambda _: None).load()
