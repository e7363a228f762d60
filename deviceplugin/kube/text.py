"""Foreign text made fit for one of our sentences: one line, no control characters, capped."""

MOST = 300


def one_line(text: str, *, most: int = MOST) -> str:
    """Whitespace is joined, what cannot be printed becomes `?`, the end is cut."""
    joined = " ".join(text[: most * 4].split())
    clean = "".join(char if char.isprintable() else "?" for char in joined)
    return clean if len(clean) <= most else clean[: most - 3] + "..."
