-- Version 1.
--
-- A row of `event` is the event and its claim: an integer key in the order of publishing, a 16-byte id, and one partial index
-- over open work, so that finished events cost nothing. The specified shape (text ids, text status, ISO times) is the view
-- `events`.
--
-- Every further index makes every publish slower, also where its condition does not hold. So queries about dead events use
-- `dead_letter`, which repeats their type and time.
--
-- status: -1 crash suspect (running at two crashes: runs in isolation), 0 pending, 1 running, 2 waiting for its next
-- attempt, 3 done, 4 dead, 5 its deliveries are open
CREATE TABLE event (
  key         INTEGER PRIMARY KEY,
  id          BLOB NOT NULL UNIQUE,
  type        TEXT NOT NULL,
  payload     TEXT NOT NULL,
  metadata    TEXT,
  status      INTEGER NOT NULL,
  retry_count INTEGER NOT NULL DEFAULT 0,
  crashes     INTEGER NOT NULL DEFAULT 0, -- number of crashes while it was running
  first_at    INTEGER,                    -- when its first attempt began, set when that fails
  owes        INTEGER NOT NULL DEFAULT 0, -- 1 if it was redriven while deliveries to single subscriptions were open
  due_at      INTEGER,
  last_error  TEXT,
  retry       TEXT,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_events_status ON event(status, due_at) WHERE status < 3;

-- The delivery of an event to one subscription: parked behind an open circuit, or tracked on its own.
CREATE TABLE delivery (
  key          INTEGER PRIMARY KEY,
  event_key    INTEGER NOT NULL REFERENCES event(key) ON DELETE CASCADE,
  subscription TEXT NOT NULL,
  status       INTEGER NOT NULL,
  retry_count  INTEGER NOT NULL DEFAULT 0,
  crashes      INTEGER NOT NULL DEFAULT 0,
  first_at     INTEGER,
  due_at       INTEGER,
  last_error   TEXT,
  updated_at   INTEGER NOT NULL,
  UNIQUE (event_key, subscription)
) STRICT;

CREATE INDEX idx_delivery_status ON delivery(status, due_at) WHERE status < 3;

-- Every failed attempt.
CREATE TABLE attempt (
  key          INTEGER PRIMARY KEY,
  event_key    INTEGER NOT NULL REFERENCES event(key) ON DELETE CASCADE,
  subscription TEXT NOT NULL,
  attempt      INTEGER NOT NULL,
  started_at   INTEGER NOT NULL,
  duration_ms  INTEGER NOT NULL,
  class        TEXT NOT NULL,
  delay_ms     INTEGER NOT NULL,
  error        TEXT NOT NULL,
  record       TEXT
) STRICT;

CREATE INDEX idx_attempt_event ON attempt(event_key);

-- The dead-letter queue: one row for each dead event or dead delivery.
CREATE TABLE dead_letter (
  key          INTEGER PRIMARY KEY,
  event_key    INTEGER NOT NULL REFERENCES event(key) ON DELETE CASCADE,
  subscription TEXT,
  type         TEXT NOT NULL,    -- of the event
  created_at   INTEGER NOT NULL, -- of the event
  dlq_at       INTEGER NOT NULL,
  reason       TEXT NOT NULL,
  fingerprint  TEXT NOT NULL,
  error        TEXT NOT NULL
) STRICT;

CREATE INDEX idx_dead_letter_event ON dead_letter(event_key);
CREATE INDEX idx_dead_letter_created ON dead_letter(created_at, event_key, key);
CREATE INDEX idx_events_type ON dead_letter(type, created_at, event_key, key);
CREATE INDEX idx_dead_letter_fingerprint ON dead_letter(fingerprint, created_at, event_key, key, dlq_at);

-- History of redrives, with the errors and the payload before each.
CREATE TABLE redriven (
  key       INTEGER PRIMARY KEY,
  event_key INTEGER NOT NULL REFERENCES event(key) ON DELETE CASCADE,
  at        INTEGER NOT NULL,
  errors    TEXT,
  payload   TEXT
) STRICT;

CREATE INDEX idx_redriven_event ON redriven(event_key);

CREATE TABLE subscriptions (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  event_type TEXT NOT NULL,
  created_at TEXT NOT NULL
) STRICT;

CREATE VIEW events AS
SELECT
  lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' ||
        substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS id,
  type,
  payload,
  CASE status WHEN -1 THEN 'pending' WHEN 0 THEN 'pending' WHEN 3 THEN 'done' WHEN 4 THEN 'dlq' ELSE 'processing' END AS status,
  retry_count,
  last_error,
  metadata,
  strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch') AS updated_at,
  (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(dlq_at) / 1000.0, 'unixepoch') FROM dead_letter WHERE event_key = event.key) AS dlq_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000.0, 'unixepoch') AS due_at
FROM event;
