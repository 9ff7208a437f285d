-- Version 7: failed attempts, failure groups, leases and the retry queue.
--
-- The failed attempts of an event are its rows in `attempt`, whether the event is tracked as one, was parked, or is tracked for each
-- subscription. The view counts them. `event.retry_count` and `event.last_error` concern attempts of the whole event only: they
-- number its next attempt.
--
-- status of an event, in addition: 6 its deliveries were redriven, and none of them has been claimed since
ALTER TABLE attempt ADD COLUMN of_delivery INTEGER NOT NULL DEFAULT 0; -- 1 for an attempt of a delivery to one subscription
ALTER TABLE attempt ADD COLUMN redriven INTEGER NOT NULL DEFAULT 0;    -- 1 after a redrive of its event or delivery

UPDATE attempt SET of_delivery = 1 WHERE EXISTS (
  SELECT 1 FROM delivery v WHERE v.event_key = attempt.event_key AND v.subscription = attempt.subscription
  AND attempt.started_at >= v.first_at);

-- Earlier redrives set the counts to zero, so the counts say how many of the last attempts came after them.
UPDATE attempt SET redriven = 1 WHERE key IN (
  SELECT a.key FROM (
    SELECT key, event_key, subscription, of_delivery,
      row_number() OVER (PARTITION BY event_key, of_delivery, iif(of_delivery, subscription, '') ORDER BY key DESC) AS age
    FROM attempt WHERE class <> 'null') a
  WHERE a.age > iif(a.of_delivery,
    (SELECT v.retry_count FROM delivery v WHERE v.event_key = a.event_key AND v.subscription = a.subscription),
    (SELECT e.retry_count FROM event e WHERE e.key = a.event_key)));

DROP VIEW events;

CREATE VIEW events AS
SELECT
  lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' ||
        substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS id,
  type,
  payload,
  CASE status WHEN -1 THEN 'pending' WHEN 0 THEN 'pending' WHEN 6 THEN 'pending' WHEN 3 THEN 'done' WHEN 4 THEN 'dlq'
    ELSE 'processing' END AS status,
  (SELECT count(*) FROM attempt a WHERE a.event_key = event.key AND a.redriven = 0 AND a.class <> 'null') AS retry_count,
  (SELECT nullif(json_group_array(error), '[]') FROM (
     SELECT a.error FROM attempt a WHERE a.event_key = event.key AND a.redriven = 0 AND a.class <> 'null' ORDER BY a.key)) AS last_error,
  metadata,
  strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch') AS updated_at,
  (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(dlq_at) / 1000.0, 'unixepoch') FROM dead_letter WHERE event_key = event.key) AS dlq_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000.0, 'unixepoch') AS due_at
FROM event;

-- A delivery that a pull consumer has leased; its due time is the end of the lease.
-- status of a delivery, in addition: -2 leased
ALTER TABLE delivery ADD COLUMN lease TEXT;        -- identifies the last lease; it counts only while the delivery is leased
ALTER TABLE delivery ADD COLUMN leased_at INTEGER; -- when that lease began

-- Earlier versions left NULL where an event was deferred or redriven. An event that was dispatched has a list, possibly empty.
UPDATE event SET handled = '[]' WHERE handled IS NULL AND status < 3
AND (updated_at > created_at OR EXISTS (SELECT 1 FROM attempt a WHERE a.event_key = event.key));

-- The subscription whose attempt failed last: of a dead delivery its own, of a dead event that of the failed handler.
ALTER TABLE dead_letter ADD COLUMN target TEXT;

UPDATE dead_letter SET target = coalesce(subscription, (
  SELECT a.subscription FROM attempt a WHERE a.event_key = dead_letter.event_key AND a.class <> 'null' AND a.subscription <> ''
  ORDER BY a.key DESC LIMIT 1));

DROP INDEX idx_dead_letter_subscription;
CREATE INDEX idx_dead_letter_target ON dead_letter(target, created_at, event_key, key);

-- One row for each message of a queue that failed, with the event of its last failure. `id` is kept when the message fails again.
CREATE TABLE retry_message (
  id             INTEGER PRIMARY KEY,
  event_key      INTEGER NOT NULL UNIQUE REFERENCES event(key) ON DELETE CASCADE,
  message_id     TEXT NOT NULL,
  original_queue TEXT NOT NULL,
  retries        INTEGER NOT NULL, -- before the last failure
  next_retry_at  TEXT NOT NULL,
  discarded      INTEGER NOT NULL DEFAULT 0, -- 1 if a review has discarded it
  UNIQUE (message_id, original_queue)
) STRICT;

CREATE INDEX idx_retry_next_retry ON retry_message(next_retry_at);

-- A review edits the task. An update of any other column does not run the trigger.
CREATE TRIGGER retry_message_edited AFTER UPDATE OF payload ON event WHEN new.type = 'retry.task' AND json_valid(new.payload) BEGIN
  UPDATE retry_message SET discarded = coalesce(json_extract(new.payload, '$.by_hand.decision') = 'discarded', 0)
  WHERE event_key = new.key;
END;

INSERT OR IGNORE INTO retry_message (event_key, message_id, original_queue, retries, next_retry_at, discarded)
SELECT key, message_id, original_queue, max(retries),
  strftime('%Y-%m-%d %H:%M:%f', min(max(next_retry_at_ms, 0), 253402300799000) / 1000.0, 'unixepoch'), discarded
FROM (
  SELECT key, CAST(task ->> 'message_id' AS TEXT) AS message_id, CAST(task ->> 'original_queue' AS TEXT) AS original_queue,
    CAST(task ->> 'retry_count' AS INTEGER) AS retries, CAST(task ->> 'next_retry_at_ms' AS INTEGER) AS next_retry_at_ms,
    coalesce(task ->> '$.by_hand.decision' = 'discarded', 0) AS discarded
  FROM (SELECT key, iif(json_valid(payload), payload, '{}') AS task FROM event WHERE type = 'retry.task'))
WHERE message_id IS NOT NULL AND original_queue IS NOT NULL
GROUP BY message_id, original_queue;

DROP VIEW retry_queue;

-- The specified table. Times are UTC. `original_payload` is text if the message is text, and base64 otherwise, which SQLite cannot
-- decode.
CREATE VIEW retry_queue AS
SELECT
  m.id,
  m.message_id,
  coalesce(json_extract(e.payload, '$.original_payload.text'), json_extract(e.payload, '$.original_payload.base64')) AS original_payload,
  m.original_queue,
  json_extract(e.payload, '$.error_reason') AS error_reason,
  m.retries + (e.status = 3 AND NOT m.discarded) AS retry_count,
  json_extract(e.payload, '$.max_retries') AS max_retries,
  m.next_retry_at,
  strftime('%Y-%m-%d %H:%M:%f', e.created_at / 1000.0, 'unixepoch') AS created_at,
  CASE WHEN e.status = 4 OR e.status = 3 AND m.discarded THEN 'failed' WHEN e.status = 3 THEN 'retried' ELSE 'pending' END AS status
FROM retry_message m LEFT JOIN event e ON e.key = m.event_key;
