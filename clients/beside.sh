# Runs commands at the same time, for the scripts that source this file. `beside NAME COMMAND…` starts one in the background with bounded
# time; `finish` waits for all, prints their outputs and durations, and fails if one of them did.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
declare -A running=()

beside() {
    local name=$1
    shift
    (
        SECONDS=0 code=0
        timeout 600 "$@" || code=$?
        echo "$([[ $code == 0 ]] && echo ok || echo "FAILED with exit code $code"): $name, $SECONDS s"
        exit $code
    ) >"$logs/$name" 2>&1 &
    running[$name]=$!
}

finish() {
    local name failed=0
    for name in "${!running[@]}"; do
        wait "${running[$name]}" || failed=1
        cat "$logs/$name"
    done
    running=()
    return $failed
}
