"""Every Python block of the guide and of the README passes `mypy --strict`; blocks without `no_run` run against a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import AnyServer
from redrive.testing import find_binary

PACKAGE = Path(__file__).resolve().parent.parent
PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "guide" / "python.md"]
BLOCKS = [
    (f"{page.stem}_{number}", match.group(1).strip(), match.group(2))
    for page in PAGES
    for number, match in enumerate(
        re.finditer(r"^```python(.*)\n((?:.*\n)*?)```$", page.read_text(encoding="utf-8"), re.M), 1
    )
]


def test_every_block_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    for name, _, text in BLOCKS:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    config = tmp_path / "mypy.ini"
    # Django has no types, so its decorators have none.
    config.write_text(
        "[mypy]\nstrict = true\ndisallow_untyped_decorators = false\n[mypy-django.*]\nignore_missing_imports = true\n"
    )
    environment = {**os.environ, "MYPYPATH": str(PACKAGE / "src")}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(PACKAGE / ".mypy_cache" / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, mark, text in BLOCKS if mark != "no_run"])
def test_a_block_runs(text: str, server: AnyServer, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE / "src"),
        "REDRIVE_BIN": os.path.abspath(find_binary()),
        "REDRIVE_SERVER": server.url,
        "WEBHOOK_SECRET": "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
    }
    # A server resolves the name of an endpoint, which needs a network.
    program = text.replace("http://127.0.0.1:8080", server.url).replace(
        "https://example.com/hooks", "http://127.0.0.1:9/hooks"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=30
    )
    assert done.returncode == 0, done.stderr
