"""Every command in the documentation is executed by a test, or its page says that it is not, and why.

The mark is <!-- not executed: REASON --> before the block. A page with commands that are not marked has a line in
TESTS; what those tests do not run of it, they say themselves (tests/e2e/test_operator_pages.py, for example).
"""

from pathlib import Path

import pytest

from tests.commands import Block, blocks

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "tests/e2e/test_operator_pages.py"
RENDERED = "tests/daemonset/test_guides.py"
TESTS = {
    "README.md": ("tests/e2e/test_first_commands.py", "tests/docs/test_site.py"),
    "daemonset/chart/README.md": (RENDERED,),
    "docs/ask-for-a-share.md": ("tests/docs/test_kubectl.py",),
    "docs/claims.md": (OPERATOR,),
    "docs/first-hour.md": (OPERATOR, "tests/docs/test_site.py", "tests/scripts/test_demo.py"),
    "docs/how-to/doctor.md": (OPERATOR,),
    "docs/how-to/from-gpu-manager.md": ("tests/e2e/test_moving.py",),
    "docs/how-to/from-hami.md": ("tests/e2e/test_moving_from_hami.py",),
    "docs/how-to/maintenance.md": (OPERATOR,),
    "docs/how-to/monitoring.md": (RENDERED,),
    "docs/how-to/multi-gpu.md": ("tests/docs/test_site.py",),
    "docs/how-to/quotas.md": (OPERATOR,),
    "docs/how-to/time-slicing.md": (OPERATOR,),
    "docs/how-to/upgrade.md": (RENDERED, "tests/e2e/operating/test_upgrade.py"),
    "docs/install.md": (OPERATOR, "tests/e2e/test_publishing.py", RENDERED),
    "docs/kubectl.md": (OPERATOR, "tests/docs/test_kubectl.py", "tests/scripts/test_plugin.py"),
    "docs/reference/http-api.md": (OPERATOR,),
    "docs/policies.md": ("tests/docs/test_gpu_policies.py",),
    "docs/runbooks.md": ("tests/e2e/test_newcomer.py",),
    "docs/scheduler.md": (OPERATOR,),
    "docs/simulate.md": ("tests/docs/test_site.py",),
    "docs/troubleshooting.md": ("tests/e2e/test_newcomer.py",),
}
SHOWN = {
    "ARCHITECTURE.md": [
        (
            "cli > (agent | scheduler) > gpu_manager > (kubelet | container | observe | cluster | simulate) > "
            "(hardware | ledger | kube)"
        )
    ],
    "docs/design.md": ["cluster                                           node"],
    "docs/how-to/autoscalers.md": ["k8s.io/cluster-autoscaler/node-template/resources/tencent.com/vcuda-core = 800"],
    "docs/how-to/doctor.md": ["ok       api-server: Kubernetes v1.36.1"],
}
"""Blocks that look like commands and are what a program prints, or what stands elsewhere."""


Pages = dict[str, list[Block]]


@pytest.fixture(scope="module")
def with_blocks(git_pages: list[Path]) -> Pages:
    return {str(page.relative_to(ROOT)): found for page in git_pages if (found := blocks(page))}


def test_every_page_with_commands_is_executed_by_a_test_or_marked(with_blocks: Pages) -> None:
    executed = {
        name for name, found in with_blocks.items() if any(each.is_commands and not each.reason for each in found)
    }
    assert executed == set(TESTS)


def test_the_tests_that_execute_a_page_name_it() -> None:
    named = [(page, test) for page, tests in TESTS.items() for test in tests]
    assert [(page, test) for page, test in named if Path(page).name not in (ROOT / test).read_text()] == []


def test_what_is_no_command_is_a_picture_or_is_known(with_blocks: Pages) -> None:
    """So no command is missed because its program is not known here."""
    plain = {name: [each.text for each in found if not each.is_commands] for name, found in with_blocks.items()}
    first = {name: [text.splitlines()[0] for text in texts if text.isascii()] for name, texts in plain.items()}
    shown = {name: [line for line in lines if not line.startswith((" ", "/"))] for name, lines in first.items()}
    assert {name: lines for name, lines in shown.items() if lines} == SHOWN


def test_readme_and_the_page_of_the_installation_begin_with_the_same_commands(with_blocks: Pages) -> None:
    (block,) = (each for each in with_blocks["README.md"] if each.heading == "Install")
    assert with_blocks["docs/install.md"][0].text == block.text


def test_only_commands_are_marked(with_blocks: Pages) -> None:
    assert [each.text for found in with_blocks.values() for each in found if each.reason and not each.is_commands] == []


def test_blocks_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```yaml\na: 1\n```\n\n## Here\n\n```\nkubectl get \\\n  pods  # all\n# nothing\n```\n\n"
        "<!-- not executed: too far -->\n```sh\nhelm list\n```\n\n```\npods\n```\n"
    )
    first, marked, output = blocks(page)
    assert (first.heading, first.commands, first.is_commands) == ("Here", ["kubectl get pods"], True)
    assert (marked.commands, marked.reason) == (["helm list"], "too far")
    assert not output.is_commands
