"""A word that a script does not understand is refused, before anything is installed or written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


CHECKED = "'{}' is not understood; give nothing, or --check"
SAID = {
    "docs": CHECKED,
    "manifests": CHECKED,
    "proto": CHECKED,
    "lock": "it takes no arguments",
    "setup": "'{}' is not understood; give nothing, or --demo",
}


@pytest.mark.parametrize("name", SAID)
def test_a_misspelt_word_installs_and_writes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / name
    script.write_text((REPOSITORY / "scripts" / name).read_text())
    done = subprocess.run(["/bin/sh", script, "--chekc"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{name}: {SAID[name].format('--chekc')}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_a_misspelt_lane_starts_nothing() -> None:
    done = subprocess.run([REPOSITORY / "scripts/check", "--stlye"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "check: '--stlye' is not understood; give nothing, or --style\n"


def test_the_demo_says_which_words_it_takes() -> None:
    command = [sys.executable, "-m", "scripts.demonstration", "--only", "nothing"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'nothing' (choose from 'node', 'cluster')" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (),
            (
                "only the CI workflow has an identity that signs; "
                "give --key FILE, which cosign generate-key-pair makes, or --unsigned"
            ),
        ),
        (("--key", "no.key"), "no.key is not a private key of cosign; cosign generate-key-pair makes one"),
        (("--key", "LICENSE"), "LICENSE is not a private key of cosign; cosign generate-key-pair makes one"),
        (("--unsigned",), "nowhere has not one file vcuda-image-*.tar; make the release with scripts/release"),
    ],
)
def test_what_shall_sign_is_looked_for_before_anything_is_built_or_sent(words: tuple[str, ...], said: str) -> None:
    command = [str(REPOSITORY / "scripts/publish"), "nowhere", "registry.example.org", *words]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={"PATH": os.defpath}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"publish: {said}\n")


def test_a_release_is_signed_in_one_way_or_not_at_all() -> None:
    command = [str(REPOSITORY / "scripts/publish"), "dist", "registry.example.org", "--unsigned", "--key", "cosign.key"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr[:23]) == (2, "", "usage: scripts/publish ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the image needs buildah skopeo jq; on Debian: apt-get install buildah skopeo jq; or give --no-image"),
        (("--image", "LICENSE"), "the image needs skopeo jq; on Debian: apt-get install skopeo jq; or give --no-image"),
        (("--image", "no.tar"), "no.tar is no file; scripts/image makes one"),
    ],
)
def test_a_release_says_what_it_lacks_before_it_installs_or_makes_anything(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    command = [str(REPOSITORY / "scripts/release"), "--uncommitted", *words, str(tmp_path / "dist")]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"release: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["dirname"]
