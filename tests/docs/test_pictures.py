"""The pictures of the policies show what the code does."""

import re

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from scripts import pictures
from scripts.pictures import PAGES, PICTURES, ROOT, drawn_page, marks


def test_the_pictures_of_the_pages_are_current() -> None:
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    assert [page for page, text in texts.items() if not list(marks(text))] == []
    assert [page for page, text in texts.items() if drawn_page(text) != text] == [], "run scripts/docs"


def test_every_mark_is_found_and_every_picture_is_shown() -> None:
    texts = [(ROOT / page).read_text() for page in PAGES]
    found = [name for text in texts for name in marks(text)]
    assert len(found) == sum(text.count("<!-- picture:") for text in texts)
    assert set(found) == set(PICTURES)


def test_a_picture_that_lies_is_found() -> None:
    honest = (ROOT / PAGES[0]).read_text()
    lying = honest.replace("▓▓", "░░", 1)
    assert lying != honest
    assert drawn_page(lying) == honest


def drawn(name: str) -> list[list[str]]:
    """Lines of a picture, cut into label and cells."""
    return [re.split(r" {2,}", line) for line in PICTURES[name]().splitlines() if line]


def policies(name: str) -> type[NodePolicy] | type[GpuPolicy]:
    return NodePolicy if name.startswith("node") else GpuPolicy


def test_each_policy_has_a_column() -> None:
    heads = {name: [cell for cell in drawn(name)[0] if cell] for name in PICTURES}
    assert heads == {name: [policy.value for policy in policies(name)] for name in PICTURES}


def test_what_is_drawn_is_what_was_asked_for() -> None:
    asked = {"node-policies": 5, "gpu-policies": 6, "gpu-policies-share": 2, "gpu-policies-several": 20}
    found = {name: PICTURES[name]().count("▓") for name in asked}
    assert found == {name: len(policies(name)) * signs for name, signs in asked.items()}


def test_the_first_picture_shows_three_different_choices() -> None:
    rows = PICTURES["node-policies"]().splitlines()[1:4]
    taken = [next(at for at, cell in enumerate(re.split(r" {3,}", row)[1:]) if "▓" in cell) for row in rows]
    assert taken[:3] == [0, 2, 1]


def test_on_the_small_day_no_pod_is_pending_only_with_fragmentation() -> None:
    (waits,) = (row for row in drawn("node-policies-day") if row[0] == "pending")
    assert waits[1:4] == ["i", "h", "nobody"]
    assert sum(cores for _, cores in pictures.DAY) == 710
