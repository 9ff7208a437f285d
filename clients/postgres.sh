#!/usr/bin/env bash
# Starts a private PostgreSQL server in a temporary folder, prints its address, and stops the server when the standard input ends.
# REDRIVE_TEST_POSTGRES names a server to use instead; POSTGRES_BIN a folder with initdb and postgres.
set -euo pipefail

if [[ -n ${REDRIVE_TEST_POSTGRES:-} ]]; then
    echo "$REDRIVE_TEST_POSTGRES"
    exec cat >/dev/null
fi

# Debian keeps the programs outside the path, in a folder for each version.
candidates=("${POSTGRES_BIN:-}" "$(dirname "$(realpath "$(command -v initdb || echo /none)")")" /usr/lib/postgresql/*/bin)
tools=
for folder in "${candidates[@]}"; do
    if [[ -n $folder && -x $folder/initdb && -x $folder/postgres ]]; then tools=$folder && break; fi
done
if [[ -z $tools ]]; then
    echo "PostgreSQL is missing: install the package postgresql (\`make test\` does that when it runs as root), or set REDRIVE_TEST_POSTGRES" >&2
    exit 1
fi

folder=$(mktemp -d)
pid=
finish() {
    if [[ -n $pid ]] && kill -QUIT "$pid" 2>/dev/null; then wait "$pid" || true; fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

as_user=()
if [[ $(id -u) == 0 ]]; then # the server refuses to run as root; its package creates the user postgres
    chown postgres "$folder"
    as_user=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
cd "$folder"
"${as_user[@]}" "$tools/initdb" --pgdata=data --username=redrive --auth=trust --encoding=UTF8 --no-sync --no-instructions >initdb.log 2>&1 || {
    cat initdb.log >&2
    exit 1
}

for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 12000)) # below the ports that the system assigns to clients
    if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
    "${as_user[@]}" "$tools/postgres" -D data -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
        -c max_connections=300 >postgres.log 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if "$tools/pg_isready" -q -h 127.0.0.1 -p "$port"; then
            echo "postgres://redrive@127.0.0.1:$port/postgres"
            cat >/dev/null
            exit 0
        fi
        sleep 0.05
    done
    pid= # the port is in use
done
cat postgres.log >&2
exit 1
