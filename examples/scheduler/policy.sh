#!/bin/sh
# Send rejected messages to the scheduler, which republishes them after their backoff.
#
#   sh examples/scheduler/policy.sh '^(orders|mail)$'
#
# The policy makes retry.scheduled the dead-letter target of all matching queues, through the default exchange. RabbitMQ applies only
# the policy with the highest priority to a queue: if your queues already have a policy, add these two keys to it. A dead-letter
# exchange in the arguments of a queue overrides the policy. On quorum queues add "dead-letter-strategy": "at-least-once" and
# "overflow": "reject-publish", so that no message is lost between the queues.
set -eu
pattern=${1:?usage: policy.sh PATTERN}
rabbitmqctl set_policy redrive "$pattern" \
  '{"dead-letter-exchange": "", "dead-letter-routing-key": "'"${RETRY_QUEUE:-retry.scheduled}"'"}' \
  --priority 10 --apply-to queues
