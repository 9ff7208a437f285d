-- Version 9: the retry scheduler.
--
-- The specified table, as a view over the events of the scheduler's tasks: one row for each message of a queue, in its state
-- after the last failure.
-- `id` is the key of the event. Times are UTC. `message_id` is text: a message id need not be a UUID.
--
-- PostgreSQL cannot parse JSON that contains NUL, for example in a header: the view shows U+FFFD instead.
CREATE VIEW redrive.retry_queue AS
SELECT DISTINCT ON (message_id, original_queue)
  key AS id,
  message_id,
  CASE WHEN body ->> 'text' IS NOT NULL THEN convert_to(body ->> 'text', 'UTF8') ELSE decode(body ->> 'base64', 'base64') END AS original_payload,
  original_queue,
  task ->> 'error_reason' AS error_reason,
  retries + CASE WHEN status = 'retried' THEN 1 ELSE 0 END AS retry_count,
  (task ->> 'max_retries')::int AS max_retries,
  to_timestamp(coalesce(due_at, (task ->> 'next_retry_at_ms')::bigint) / 1000.0) AT TIME ZONE 'UTC' AS next_retry_at,
  to_timestamp(created_at / 1000.0) AT TIME ZONE 'UTC' AS created_at,
  status
FROM (
  SELECT e.key, e.due_at, e.created_at, task, task -> 'original_payload' AS body, task ->> 'message_id' AS message_id,
    task ->> 'original_queue' AS original_queue, (task ->> 'retry_count')::int AS retries,
    CASE
      WHEN e.status = 4 OR e.status = 3 AND task -> 'by_hand' ->> 'decision' = 'discarded' THEN 'failed'
      WHEN e.status = 3 THEN 'retried'
      ELSE 'pending'
    END AS status
  FROM redrive.event e
  JOIN LATERAL (SELECT replace(p.payload, '\u0000', '\ufffd')::json AS task FROM redrive.payload p WHERE p.event_key = e.key) AS parsed ON true
  WHERE e.type = 'retry.task'
) AS tasks
ORDER BY message_id, original_queue, retries DESC;
