"""Generates the synchronous client (`redrive/_sync`) from the asynchronous one. `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "redrive"
SHARED = ["api", "client", "dlq", "endpoints", "events", "pages", "replays", "subscriptions", "tokens"]
HEADER = "# Generated from ../_async/{name} by scripts/unasync.py: change that file instead.\n"

RULES = [
    (r"Awaitable\[(Page\[T\]|object)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\basync def\b", "def"),
    (r"\basync for\b", "for"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"__aiter__", "__iter__"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\baclose\b", "close"),
    (r"\basleep\b", "sleep"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
]


def sync_of(name: str) -> str:
    """Returns the synchronous form of an asynchronous module."""
    text = (SOURCE / "_async" / name).read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    head, imports, rest = text.partition("from __future__")
    return HEADER.format(name=name) + head + imports + _sorted_names(rest)


def _sorted_names(text: str) -> str:
    """Sorts the names of `from typing import …`, whose order the rules may change."""

    def ordered(match: re.Match[str]) -> str:
        names = sorted(match.group(1).split(", "), key=lambda name: (name.islower(), name))
        return f"from typing import {', '.join(names)}\n"

    return re.sub(r"^from typing import (.*)\n", ordered, text, flags=re.M)


def main() -> int:
    """Writes or checks every generated module."""
    stale = []
    for name in (f"{module}.py" for module in SHARED):
        path, text = SOURCE / "_sync" / name, sync_of(name)
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"run scripts/unasync.py: {', '.join(stale)} differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
