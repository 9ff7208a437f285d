#!/bin/sh
# Send rejected messages to the scheduler, which republishes them after their backoff.
#
#   sh examples/scheduler/policy.sh '^(orders|mail)$'
#
# The queues that the pattern matches get the queue retry.scheduled as their dead-letter target, by the default exchange. A queue has
# one policy at a time, the one with the highest priority: if yours have one already, put these two keys into it. Queues whose
# arguments name a dead-letter exchange keep that. On quorum queues add "dead-letter-strategy": "at-least-once" and
# "overflow": "reject-publish", so that no message is lost between the queues.
set -eu
pattern=${1:?usage: policy.sh PATTERN}
rabbitmqctl set_policy redrive "$pattern" \
  '{"dead-letter-exchange": "", "dead-letter-routing-key": "'"${RETRY_QUEUE:-retry.scheduled}"'"}' \
  --priority 10 --apply-to queues
