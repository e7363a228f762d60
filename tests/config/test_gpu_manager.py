"""gpu-manager's two JSON files."""

import itertools
from pathlib import Path

import pytest

from deviceplugin.config.agent import AGENT, Volume, VolumeComponents, VolumeConfig
from deviceplugin.config.command import SettingsCommand
from deviceplugin.errors import ConfigError
from tests.config.resolving import resolve


def write(directory: Path, text: str) -> str:
    path = directory / "file.json"
    path.write_text(text)
    return str(path)


def test_extra_devices_are_read_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, '{"default": {"devices": ["/dev/nvidia-uvm-tools", "/dev/infiniband/rdma_cm"]}}')
    extra = resolve(AGENT, flags={"extra-config": path}, env={}).settings.driver.extra_config
    assert extra.devices == ("/dev/nvidia-uvm-tools", "/dev/infiniband/rdma_cm")
    assert extra.path == Path(path)


def test_gpu_managers_empty_file_means_no_extra_devices(tmp_path: Path) -> None:
    path = write(tmp_path, "{}")
    assert resolve(AGENT, flags={"extra-config": path}, env={}).settings.driver.extra_config.devices == ()


def test_other_keys_beside_default_are_taken_as_gpu_manager_takes_them(tmp_path: Path) -> None:
    path = write(tmp_path, '{"default": {"devices": ["/dev/a"]}, "other": {"devices": ["/dev/b"]}}')
    assert resolve(AGENT, flags={"extra-config": path}, env={}).settings.driver.extra_config.devices == ("/dev/a",)


WRONG = (
    ('{"default": {"devices": "x"}}', "Expected `array`, got `str` - at `$.default.devices`"),
    ('{"default": {"devcies": []}}', "Object contains unknown field `devcies` - at `$.default`"),
    (
        '{"default": {"devices": ["/dev/../etc"]}}',
        "$.default.devices[0] is '/dev/../etc', which is not a path under",
    ),
    ('{"default": {"devices": ["/dev/a", "b"]}}', "$.default.devices[1] is 'b', which is not a path under /dev"),
    ('{"default": {"dev\\nices": []}}', "Object contains unknown field `dev ices` - at `$.default`"),
    ("", "Input data was truncated"),
    ("[" * 100_000, "Expected `object`, got `array`"),
    ('{"default": {"devices": ' + "[" * 100_000, "Expected `str`, got `array`"),
)


def test_a_wrong_file_names_flag_file_and_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, message in WRONG:
        with subtests.test(message):
            path = write(tmp_path, text)
            with pytest.raises(ConfigError) as caught:
                resolve(AGENT, flags={"extra-config": path}, env={})
            assert caught.value.message.startswith(f"--extra-config: {path}")
            assert message in caught.value.message


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--volume-config: .*none.json cannot be read: No such file or directory"):
        resolve(AGENT, flags={"volume-config": str(tmp_path / "none.json")}, env={})


def test_a_volume_config_of_gpu_managers_shape_is_read(tmp_path: Path) -> None:
    volume = '{"name": "nvidia", "base": "/x", "mode": "ro", "components": {"binaries": ["a"], "libraries": ["b"]}}'
    path = write(tmp_path, f'{{"volume": [{volume}], "config": {{}}}}')
    found = resolve(AGENT, flags={"volume-config": path}, env={}).settings.driver.volume_config
    assert found == VolumeConfig(Path(path), (Volume("nvidia", "/x", "ro", VolumeComponents(("a",), ("b",))),))
    assert resolve(AGENT, flags={}, env={}).settings.driver.volume_config == VolumeConfig()


def test_a_component_that_is_no_name_of_a_file_is_refused_with_its_place(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    names = ("", ".", "..", "../x", "/usr/bin/x", "x/y", "x\\n")
    for kind, name in itertools.product(("binaries", "libraries"), names):
        with subtests.test(kind, name=name):
            components = f'{{"{kind}": ["ok", "{name}"]}}'
            path = write(tmp_path, f'{{"volume": [{{"name": "n", "base": "/b", "components": {components}}}]}}')
            with pytest.raises(ConfigError) as caught:
                resolve(AGENT, flags={"volume-config": path}, env={})
            assert f"$.volume[0].components.{kind}[1] is " in caught.value.message
            assert caught.value.message.endswith("which is not the name of a file")


def test_a_volume_without_a_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '{"volume": [{"base": "/x"}]}')
    with pytest.raises(ConfigError, match=r"missing required field `name` - at `\$.volume\[0\]`"):
        resolve(AGENT, flags={"volume-config": path}, env={})


START_SCRIPT = [
    *("--extra-config=", "--v=4", "--hostname-override=gpu-7", "--share_mode=true", "--volume-config="),
    *("--log_dir=/var/log/gpu-manager", "--query-addr=0.0.0.0", "--logtostderr", "--alsologtostderr=false"),
    *("--stderrthreshold", "2", "--vmodule=allocator=5", "--log_backtrace_at=:0", "--query_port", "5678"),
]


@pytest.mark.parametrize("verbosity", [[], ["-v", "4"], ["-v=4"], ["-v4"]])
def test_the_flags_of_gpu_managers_start_script_start_the_agent(verbosity: list[str]) -> None:
    command = SettingsCommand("agent", program=AGENT)
    with command.make_context("agent", [*START_SCRIPT, *verbosity]) as context:
        found = command.effective(context)
    assert found.settings.allocation.share_mode
    assert (found.settings.node.name, found.settings.query.port) == ("gpu-7", 5678)
    (sentence,) = found.retired
    assert sentence.startswith("--v, --vmodule, --log-dir, --logtostderr, --alsologtostderr, --stderrthreshold, ")
    assert sentence.endswith("have no effect: the agent writes its log to standard error, see --log-level")
