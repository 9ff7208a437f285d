-- Version 5: the retry scheduler.
--
-- The specified table as a view: each task is an event, and the view has one row per message of a queue, with its state after the
-- last failure. `id` is the key of that event. Times are UTC. `original_payload` is text if the message is text, and base64
-- otherwise, which SQLite cannot decode.
CREATE VIEW retry_queue AS
SELECT
  key AS id,
  message_id,
  coalesce(json_extract(task, '$.original_payload.text'), json_extract(task, '$.original_payload.base64')) AS original_payload,
  json_extract(task, '$.original_queue') AS original_queue,
  json_extract(task, '$.error_reason') AS error_reason,
  retries + (status = 'retried') AS retry_count,
  json_extract(task, '$.max_retries') AS max_retries,
  strftime('%Y-%m-%d %H:%M:%f', coalesce(due_at, json_extract(task, '$.next_retry_at_ms')) / 1000.0, 'unixepoch') AS next_retry_at,
  strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') AS created_at,
  status
FROM (
  -- With max(), SQLite takes the other columns from the row with the maximum.
  SELECT key, due_at, created_at, payload AS task, json_extract(payload, '$.message_id') AS message_id,
    max(json_extract(payload, '$.retry_count')) AS retries,
    CASE
      WHEN status = 4 OR status = 3 AND json_extract(payload, '$.by_hand.decision') = 'discarded' THEN 'failed'
      WHEN status = 3 THEN 'retried'
      ELSE 'pending'
    END AS status
  FROM event
  WHERE type = 'retry.task'
  GROUP BY json_extract(payload, '$.message_id'), json_extract(payload, '$.original_queue')
);
