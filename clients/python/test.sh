#!/usr/bin/env bash
# Runs every check of the Python client: generated files, tests against the binary, the example, types and the package.
#   REDRIVE_BIN=target/debug/redrive clients/python/test.sh [tests | package]
# The tests with a server run twice, at the same time: on SQLite, and on PostgreSQL with three servers behind a load balancer.
# Needs python3 with venv (Debian: python3-venv), PostgreSQL, Node for pyright, and once a connection to pypi.org and registry.npmjs.org.
# REDRIVE_PYTHON_VENV names a folder for the virtual environment; clients/python/.venv by default.
set -euo pipefail

REDRIVE_BIN=$(realpath "${REDRIVE_BIN:?set REDRIVE_BIN to the redrive binary}")
export REDRIVE_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=$(realpath -m "${REDRIVE_PYTHON_VENV:-.venv}")

if ! cmp -s requirements.txt "$venv/requirements.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$venv/requirements.txt"
fi
export PATH=$venv/bin:$PATH

source ../beside.sh

if [[ ${1:-tests} == tests ]]; then
    python scripts/unasync.py --check
    python scripts/signature_vectors.py --check
    if [[ -z ${REDRIVE_TEST_POSTGRES:-} ]]; then # one for all; it stops when this script ends
        coproc POSTGRES { exec ../postgres.sh; }
        read -r REDRIVE_TEST_POSTGRES <&"${POSTGRES[0]}"
        export REDRIVE_TEST_POSTGRES
    fi
    beside 'python, handlers of a minute' pytest tests/test_long_handlers.py
    beside 'python, worker on PostgreSQL with three servers' pytest --store postgres tests/test_worker.py -k "not async"
    beside 'python, asynchronous worker on PostgreSQL with three servers' pytest --store postgres tests/test_worker.py -k async
    beside 'python, client on PostgreSQL with three servers' pytest --store postgres tests/test_cluster.py tests/test_client.py
    status=0
    timeout 400 pytest --ignore tests/test_long_handlers.py --ignore tests/test_cluster.py || status=1
    PYTHONPATH=src timeout 60 pytest -q -c /dev/null --rootdir ../../examples/shop-python -p no:cacheprovider ../../examples/shop-python || status=1
    finish || status=1
    ((status == 0)) || exit 1
fi
if [[ ${1:-package} == package ]]; then
    scripts/check_package.sh
fi
