"""Commands that a test runs in its own process read their kubeconfig there too."""

import pytest

from deviceplugin.kube.kubeconfig_process import Facts, Source, read


@pytest.fixture(autouse=True)
def kubeconfig_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a command's processor time would be the process that reads it. Commands that a test starts have it."""

    def read_here(kubeconfig: Source, *, longest_s: float) -> Facts:
        return read(kubeconfig)

    monkeypatch.setattr("deviceplugin.cli.scheduler_client.read_apart", read_here)
