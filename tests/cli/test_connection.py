"""Which cluster is asked: KUBECONFIG as kubectl reads it, contexts, `--url`; and one sentence where nobody answers."""

import asyncio
import json
import re
import ssl
from pathlib import Path

import pytest
import yaml

from sandbox.cluster.certificates import ClusterCa
from tests.cli.command_runner import kubeconfig, run, vcuda
from tests.cli.view_server import ACCOUNT, SERVICE, TOKEN, Cluster, node, pod, refusal, serving

NODES = f"{SERVICE}/view/nodes"
FORBIDDEN = 'services "x" is forbidden: User "ann" cannot get resource "services/proxy" in API group ""'


def merged(document: Path, *, context: str) -> Path:
    """The file with another current context; empty: none."""
    found = yaml.safe_load(document.read_text())
    found["current-context"] = context
    document.write_text(yaml.safe_dump(found))
    return document


async def test_several_files_are_merged_as_kubectl_merges_them(tmp_path: Path) -> None:
    """The first file that names a current context, or defines a context, counts; empty and missing files do not."""
    one, two = Cluster([node("in-one")]), Cluster([node("in-two")])
    async with serving(one) as first, serving(two) as second:
        a = merged(kubeconfig(tmp_path / "a", first, name="one"), context="")
        b = merged(kubeconfig(tmp_path / "b", second, name="two"), context="two")
        c = merged(kubeconfig(tmp_path / "c", first, name="two"), context="one")
        (tmp_path / "empty").write_text("\n")
        listed = ":".join(map(str, [tmp_path / "missing", tmp_path / "empty", a, b, c]))
        for args, found in (
            ([], "node/in-two"),
            (["--context", "one"], "node/in-one"),
            (["--kubeconfig", str(c)], "vcuda: kubeconfig"),
        ):
            result = await run("nodes", "-o", "name", *args, env={"KUBECONFIG": listed})
            assert result.output.startswith(found), result.output
        wrong = await run("nodes", "--context", "three", env={"KUBECONFIG": listed})
        assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
        assert wrong.stderr.endswith("has no context 'three'; it has: one, elsewhere, two\n")


async def test_without_a_kubeconfig_the_sentence_says_where_one_was_looked_for(tmp_path: Path) -> None:
    result = await run("nodes")
    assert result.stderr == (
        "vcuda: no kubeconfig: KUBECONFIG is not set, and there is no ~/.kube/config; pass --kubeconfig FILE, or --url "
        "https://HOST:8443 of the scheduler\n"
    )
    listed = await run("nodes", env={"KUBECONFIG": str(tmp_path / "none")})
    assert f"no file of KUBECONFIG ({tmp_path / 'none'}) exists" in listed.stderr


async def test_a_kubeconfig_in_the_home_is_found(tmp_path: Path) -> None:
    async with serving(Cluster([node("n")])) as url:
        (tmp_path / ".kube").mkdir()
        kubeconfig(tmp_path / ".kube" / "config", url)
        assert (await run("nodes", "-o", "name", env={"HOME": str(tmp_path)})).stdout == "node/n\n"


async def test_what_is_in_the_way_is_one_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for status, text, said in [
        (
            *refusal(404, 'services "vcuda-scheduler" not found'),
            "no scheduler found: there is no service vcuda-scheduler ",
        ),
        (
            *refusal(503, "no endpoints available"),
            "no replica of the scheduler answers for service vcuda-scheduler in ",
        ),
        (*refusal(403, FORBIDDEN), f"{FORBIDDEN}; an administrator gives you the right with "),
        (*refusal(403, "denied by a proxy"), "the scheduler cannot be asked (403): denied by a proxy"),
        (*refusal(403, FORBIDDEN.replace("ann", "system:anonymous")), "the API server does not accept the credentials"),
        (*refusal(401, "Unauthorized"), "the API server does not accept the credentials of kubeconfig "),
        (404, "no such path; the paths are /explain", "the scheduler is older than this command; upgrade the chart"),
        (400, '{"error": "limit is 0; write a number"}', "limit is 0; write a number\n"),
        (503, '{"error": "the scheduler is not ready yet: why"}', "the scheduler is not ready yet: why; try again\n"),
        (503, '{"error": "too many ask; try again"}', "too many ask; try again\n"),
        (200, "<html>log in</html>", "the scheduler's answer is of another version of vcuda"),
        (200, '{"version": 2}', "the scheduler's answer is of another version of vcuda"),
        (500, "\x1b[31moh\nno", "the scheduler cannot be asked (500): ?[31moh no\n"),
    ]:
        with subtests.test(status=status):
            result = await vcuda(Cluster(answers={NODES: (status, text)}), tmp_path, "nodes")
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
            assert result.stderr.startswith(f"vcuda: {said}"), result.stderr


async def test_a_failure_is_json_where_json_was_asked_for(tmp_path: Path) -> None:
    scene = Cluster(answers={NODES: refusal(403, FORBIDDEN)})
    result = await vcuda(scene, tmp_path, "nodes", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"] == result.stderr.removeprefix("vcuda: ").rstrip()
    as_yaml = await vcuda(scene, tmp_path, "nodes", "--output=yaml")
    assert yaml.safe_load(as_yaml.stdout) == json.loads(result.stdout)
    wrong = await vcuda(scene, tmp_path, "nodes", "--sort", "x", "-ojson")
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["error"].startswith("no such option '--sort'; did you mean --port or --sort-by?")


async def test_a_server_that_is_away_silent_or_no_server_is_one_sentence(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kc", "http://127.0.0.1:9")
    away = await run("nodes", "--kubeconfig", str(path))
    assert away.stderr == (
        "vcuda: 127.0.0.1:9 cannot be reached: Connection refused; check that it runs, or name another one with "
        "--context or --kubeconfig\n"
    )
    by_url = await run("nodes", "--url", "https://127.0.0.1:9")
    assert by_url.stderr.endswith("Connection refused; check that it runs, or name another one with --url\n")
    done = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()
        await writer.wait_closed()

    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    kubeconfig(path, f"http://127.0.0.1:{port}")
    late = await run("nodes", "--kubeconfig", str(path), "--request-timeout", "1s")
    assert late.stderr == (
        f"vcuda: 127.0.0.1:{port} cannot be reached: no answer in time; check the address, or give a longer "
        "--request-timeout\n"
    )
    silent.close()
    done.set()
    await asyncio.sleep(0.05)


async def test_an_untrusted_api_server_and_one_without_tls(tmp_path: Path) -> None:
    ca = ClusterCa(tmp_path / "pki")
    pair = ca.issue("server", common_name="server", names=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    async with serving(Cluster([node("n")]), tls=context) as url:
        path = kubeconfig(tmp_path / "kc", url)
        result = await run("nodes", "--kubeconfig", str(path))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "its certificate is not trusted (" in result.stderr
        assert result.stderr.endswith("else correct certificate-authority of the kubeconfig\n")
        assert "_ssl.c" not in result.stderr
    async with serving(Cluster()) as url:
        kubeconfig(path, url.replace("http", "https"))
        plain = await run("nodes", "--kubeconfig", str(path))
        said = plain.stderr.splitlines()[-1]  # before it the stand-in's own log
        assert said.endswith("it does not speak TLS as expected (wrong version number); check address and port")


async def test_the_token_is_for_the_view_and_never_printed(tmp_path: Path) -> None:
    scene = Cluster([node("n")], [pod("llm")])
    result = await vcuda(scene, tmp_path, "pods", "-A", "-o", "json")
    assert scene.asked[0][0] == ACCOUNT
    assert json.loads(result.stdout)["items"][0]["pod"] == "llm"
    assert TOKEN not in result.output


async def test_no_usable_token_is_as_no_right_to_have_one(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, str]] = [(201, "{}"), (201, "no json"), (201, '{"status": {"token": "a\\nb"}}'), (500, "")]
    for answer in cases:
        with subtests.test(answer=answer):
            scene = Cluster([node("n")], answers={ACCOUNT: answer})
            assert (await vcuda(scene, tmp_path, "nodes", "-o", "name")).stdout == "node/n\n"


async def test_options_that_do_not_go_together_are_one_sentence(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--url", "http://x"], "--url: 'http://x' is not an address such as https://10.0.0.7:8443; see"),
        (["--url", "bogus"], "--url: 'bogus' is not an address such as https://10.0.0.7:8443; see vcuda nodes --help"),
        (["--url", "https://[x"], "--url: 'https://[x' is not an address"),
        (["--url", "https://x:y"], "--url: 'https://x:y' is not an address"),
        (["--url", "https://x", "--context", "c"], "--url asks the scheduler without the API server"),
        (["--insecure"], "--ca-file and --insecure go with --url"),
        (["--free", "--problems"], "--free and --problems ask for different nodes; give one of them; see vcuda nodes"),
    ]
    for args, said in cases:
        with subtests.test(args=args):
            result = await run("nodes", *args)
            assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
            assert result.stderr.startswith(f"vcuda: {said}"), result.stderr
    files: list[tuple[list[str], str]] = [
        (["--url", "https://x", "--token-file", "/none"], "--token-file: /none cannot be read: No such file"),
        (["--kubeconfig", "/none"], "kubeconfig /none cannot be read: No such file or directory"),
    ]
    for args, said in files:
        with subtests.test(args=args):
            result = await run("nodes", *args)
            assert (result.exit_code, result.stderr.startswith(f"vcuda: {said}")) == (1, True), result.stderr


async def test_a_wrong_timeout_ends_with_status_2(subtests: pytest.Subtests) -> None:
    for text in ["soon", "-1s", "1d", "", "99999h"]:
        with subtests.test(text=text):
            result = await run("nodes", "--request-timeout", text)
            assert result.exit_code == 2
            assert re.search("is not a duration; give seconds|is longer than a year", result.stderr), result.stderr
