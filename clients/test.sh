#!/usr/bin/env bash
# Tests the clients, their packages and the API document against the redrive program in REDRIVE_BIN. Needs Node with npm, Python with venv
# and PostgreSQL, which it installs as root on Debian, and the registries of npm and PyPI on the first run.
#   REDRIVE_BIN=target/debug/redrive clients/test.sh
set -euo pipefail
REDRIVE_BIN=$(realpath "${REDRIVE_BIN:?set REDRIVE_BIN to the redrive program}")
export REDRIVE_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"

source beside.sh

missing=()
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [[ -z ${REDRIVE_TEST_POSTGRES:-} ]] && ! ./postgres.sh </dev/null >/dev/null; then missing+=(postgresql); fi
if ((${#missing[@]})); then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "the tests of the clients need ${missing[*]} (Debian's names): install them, or run this as root on Debian" >&2
        exit 1
    fi
    echo "installing ${missing[*]}"
    apt-get install --yes --quiet --no-install-recommends "${missing[@]}" >/dev/null
fi

cd typescript
if [[ ! -d node_modules || package-lock.json -nt node_modules ]]; then npm ci --no-audit --no-fund --silent; fi
cd ..

# Side by side: the tests wait for leases, restarts and handlers of a minute.
beside typescript npm --prefix typescript test --silent
beside python python/test.sh tests
finish

beside "typescript, package" npm --prefix typescript run check --silent
beside "python, package" python/test.sh package
beside openapi node openapi/test.mjs
finish
