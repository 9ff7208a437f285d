-- Version 4: webhooks.
--
-- What a target tells of an attempt: for a webhook the answer's status, headers and the beginning of its body. JSON.
ALTER TABLE attempt ADD COLUMN detail TEXT;

CREATE INDEX idx_attempt_subscription ON attempt(subscription, key);
CREATE INDEX idx_dead_letter_subscription ON dead_letter(subscription, created_at, event_key, key);

-- What is held until its subscription calls for it is due at this instant, which never comes. Nothing else is in this index.
CREATE INDEX idx_delivery_held ON delivery(subscription, key) WHERE due_at = 9000000000000000;

-- What is configured while it runs, and survives it: endpoints, tokens, replays. `key` is its kind and its id (`endpoint/…`), `body`
-- is JSON, `version` counts its changes.
CREATE TABLE document (
  key        TEXT PRIMARY KEY,
  version    INTEGER NOT NULL,
  body       TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
