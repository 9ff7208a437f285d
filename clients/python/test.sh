#!/bin/sh
# Runs every check of the Python client: generated files, tests against the binary, the example, types and the package.
#   REDRIVE_BIN=target/debug/redrive clients/python/test.sh [tests | package]
# Needs python3 with venv (Debian: python3-venv), Node for pyright, and once a connection to pypi.org and registry.npmjs.org.
# REDRIVE_PYTHON_VENV names a folder for the virtual environment; clients/python/.venv by default.
set -eu

binary=${REDRIVE_BIN:?set REDRIVE_BIN to the redrive binary}
REDRIVE_BIN=$(realpath "$binary")
export REDRIVE_BIN
cd "$(dirname "$0")"
venv=$(realpath -m "${REDRIVE_PYTHON_VENV:-.venv}")

if ! cmp -s requirements.txt "$venv/requirements.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$venv/requirements.txt"
fi
PATH=$venv/bin:$PATH
export PATH

if [ "${1:-tests}" = tests ]; then
    python scripts/unasync.py --check
    python scripts/signature_vectors.py --check
    timeout 180 pytest
    PYTHONPATH=src timeout 60 pytest -q -c /dev/null --rootdir ../../examples/shop-python -p no:cacheprovider ../../examples/shop-python
fi
if [ "${1:-package}" = package ]; then
    scripts/check_package.sh
fi
