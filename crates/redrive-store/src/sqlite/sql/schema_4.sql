-- Version 4: webhooks.
--
-- The detail of an attempt as JSON: for a webhook the status, the headers and the beginning of the body of the response.
ALTER TABLE attempt ADD COLUMN detail TEXT;

CREATE INDEX idx_attempt_subscription ON attempt(subscription, key);
CREATE INDEX idx_dead_letter_subscription ON dead_letter(subscription, created_at, event_key, key);

-- The backlog: its deliveries have this due time, which never comes. No other rows are in this index.
CREATE INDEX idx_delivery_backlog ON delivery(subscription, key) WHERE due_at = 9000000000000000;

-- Configuration that changes at run time: endpoints, tokens, replays. `key` is kind and id (`endpoint/…`), `body` is JSON, `version`
-- counts the changes.
CREATE TABLE document (
  key        TEXT PRIMARY KEY,
  version    INTEGER NOT NULL,
  body       TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
