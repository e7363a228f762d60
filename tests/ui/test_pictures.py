"""The pictures of the page in the documentation: of the page as it is, and each of them used."""

from tests.ui.screenshots import FOLDER, PICTURED, PICTURES, ROOT, page_hash


def test_the_pictures_are_not_older_than_the_page() -> None:
    assert PICTURED.read_text().strip() == page_hash(), "run scripts/screenshots, look at the pictures, commit them"


def test_there_are_no_other_pictures_and_each_is_shown() -> None:
    names = {name for name, *_ in PICTURES}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert all(0 < (FOLDER / name).stat().st_size < 150_000 for name in names)
    texts = "".join(path.read_text() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
    assert [name for name in names if f"pictures/{name}" not in texts] == []
