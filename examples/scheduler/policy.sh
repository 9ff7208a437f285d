#!/bin/sh
# What a consumer rejects goes to the scheduler, and comes back when its backoff has passed: no code, no dead-letter handler.
#
#   sh examples/scheduler/policy.sh '^(orders|mail)$'
#
# The queues that the pattern matches get the queue retry.scheduled as their dead-letter target, by the default exchange. A queue has
# one policy at a time, the one with the highest priority: if yours have one already, put these two keys into it. Queues whose
# arguments name a dead-letter exchange keep that. On quorum queues add "dead-letter-strategy": "at-least-once" and
# "overflow": "reject-publish", so that nothing is lost on the way from one queue to the other.
set -eu
pattern=${1:?usage: policy.sh PATTERN}
rabbitmqctl set_policy redrive "$pattern" \
  '{"dead-letter-exchange": "", "dead-letter-routing-key": "'"${RETRY_QUEUE:-retry.scheduled}"'"}' \
  --priority 10 --apply-to queues
