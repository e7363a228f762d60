"""The control groups of a hostile process: nothing raises, and a container is only where its path says it is."""

from tests.container.fuzz.harness import instrumented, run

with instrumented():
    from deviceplugin.container import processes

MOST_LINES = 64


def check(data: bytes) -> None:
    memberships = processes.parse_memberships(data)
    assert len(memberships) <= MOST_LINES
    for each in memberships:
        assert each.startswith("/")
        assert "\n" not in each
        assert each.encode(errors="surrogateescape") in data
        root = processes.root_of(each)
        assert root == "" or each.startswith(f"{root}/")
    found = processes.container_of(memberships)
    if found is not None:
        check_group(found, memberships)


def check_group(found: processes.ContainerGroup, memberships: tuple[str, ...]) -> None:
    assert any(f"{each}/".startswith(f"{found.path}/") for each in memberships)
    assert processes.container_in(found.path) == found
    for name in (found.pod, found.container_id):
        assert 4 <= len(name) <= 128
        assert name.isascii()
        assert not set(name) & set("/\0\n")
    for path in processes.paths_of(found.pod, found.container_id):
        assert path.startswith("/")
        assert processes.container_in(path) is not None


if __name__ == "__main__":
    run(check)
