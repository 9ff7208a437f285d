#!/bin/sh
# A walk through the HTTP API with curl. Start a server and a receiver first:
#
#   redrive serve --allow-range 127.0.0.0/8 &
#   WEBHOOK_SECRET=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3 python3 examples/serve/receiver.py 9000 &
#   sh examples/serve/walkthrough.sh http://127.0.0.1:8080 http://127.0.0.1:9000/
#
# If the server requires a token, set REDRIVE_TOKEN. Needs curl and python3 (to read JSON).
set -eu
server=${1:-http://127.0.0.1:8080}
receiver=${2:-http://127.0.0.1:9000/}
secret=${WEBHOOK_SECRET:-whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3}

# call METHOD PATH [BODY]: makes one request and prints its response; an error ends the script.
call() {
    method=$1 path=$2 body=${3-}
    set -- --silent --show-error --fail-with-body --max-time 60 -X "$method" "$server$path"
    [ -z "${REDRIVE_TOKEN-}" ] || set -- "$@" -H "authorization: Bearer $REDRIVE_TOKEN"
    [ -z "$body" ] || set -- "$@" -H 'content-type: application/json' -d "$body"
    curl "$@"
}

# field NAME: one field of the JSON on standard input; a number in the path is an index.
field() {
    python3 -c 'import functools, json, sys
print(functools.reduce(lambda at, name: at[int(name) if name.isdigit() else name], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

say() { printf '\n== %s\n' "$1"; }

say 'Check that the server is ready.'
call GET /readyz

say 'Create an endpoint: URL, patterns, secret. (Without a secret, the server generates one and returns it.)'
endpoint=$(call POST /v1/endpoints "{\"url\": \"$receiver\", \"patterns\": [\"order.*\"], \"secret\": \"$secret\"}" | field id)
echo "endpoint $endpoint"

say 'Send a test message; the receiver verifies its signature.'
call POST "/v1/endpoints/$endpoint/test" | field status

say 'Publish an event. 202 means that it is on stable storage.'
event=$(call POST /v1/events '{"type": "order.created", "payload": {"order": 7}}' | field id)
echo "event $event"

say 'Send a request twice with one Idempotency-Key: it publishes one event.'
for time in first second; do
    set -- -H 'content-type: application/json' -H "idempotency-key: walk-$event"
    [ -z "${REDRIVE_TOKEN-}" ] || set -- "$@" -H "authorization: Bearer $REDRIVE_TOKEN"
    id=$(curl --silent --show-error --fail-with-body "$@" -d '{"type": "order.paid", "payload": {"order": 7}}' "$server/v1/events" | field id)
    echo "$time: $id"
    [ "$time" = first ] && paid=$id
done
[ "$id" = "$paid" ]

say 'Wait until the event is done.'
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    status=$(call GET "/v1/events/$event" | field status)
    [ "$status" = done ] && break
    sleep 1
done
echo "event $event is $status"
[ "$status" = done ]

say 'Show the status of the last attempt.'
call GET "/v1/endpoints/$endpoint/attempts?limit=1" | field data.0.request.status

say 'Replay the event.'
call POST "/v1/events/$event/replay" "{\"endpoint\": \"$endpoint\"}"

say 'Create a pull subscription, and publish an event for it.'
call PUT /v1/subscriptions/worker '{"patterns": ["job.*"], "lease_ms": 10000}' | field name
call POST /v1/events '{"type": "job.resize", "payload": {"image": 3}}' | field id

say 'Pull one delivery; it is leased.'
pulled=$(call POST /v1/subscriptions/worker/pull '{"max": 1, "wait_ms": 10000}')
lease=$(echo "$pulled" | field data.0.lease)
echo "$pulled" | field data.0.type

say 'Ack the delivery.'
call POST /v1/subscriptions/worker/ack "{\"leases\": [\"$lease\"]}"

say 'Rotate the secret; the old one stays valid for a day.'
call POST "/v1/endpoints/$endpoint/secret/rotate" '{"overlap_s": 86400}' | field data.1.expires_at

say 'Show statistics and dead letters.'
call GET /v1/stats
call GET '/v1/dlq?limit=5'

say 'Remove the endpoint.'
call DELETE "/v1/endpoints/$endpoint"
echo done
