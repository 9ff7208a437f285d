#!/bin/sh
# Checks format, types and package: ruff, mypy, pyright, the oldest Python by syntax, sdist and wheel, and a program in an empty project.
# Runs in the virtual environment of ../test.sh.
set -eu

cd "$(dirname "$0")/.."
python=$(command -v python)
ruff check --quiet .
ruff format --quiet --check .
mypy
MYPYPATH=src mypy --strict --cache-dir .mypy_cache/rest tests scripts bench.py
MYPYPATH=src mypy --strict --cache-dir .mypy_cache/example ../../examples/shop-python
pyright --pythonpath "$python"
vermin --quiet --no-tips --eval-annotations --target=3.9- src

rm -rf dist
python -m build --no-isolation --outdir dist . >/dev/null
twine check --strict dist/*

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
python3 -m venv "$empty/venv"
"$empty/venv/bin/pip" install --quiet --disable-pip-version-check --no-index dist/redrive-*.whl
cp scripts/typed_program.py "$empty"
cd "$empty"
mypy --strict --no-error-summary --cache-dir mypy_cache --python-executable venv/bin/python typed_program.py
pyright --pythonpath venv/bin/python typed_program.py
venv/bin/python - <<'PYTHON'
import importlib.metadata, importlib.resources
import redrive, redrive.retry, redrive.testing

assert redrive.__version__ == importlib.metadata.version("redrive")
assert (importlib.resources.files("redrive") / "py.typed").is_file()
redrive.Redrive("http://127.0.0.1:1").close()
try:
    redrive.AsyncRedrive
except ModuleNotFoundError as missing:
    assert "redrive[async]" in str(missing)
else:
    raise AssertionError("httpx must be missing here")
print(f"redrive {redrive.__version__} works without any other package")
PYTHON
