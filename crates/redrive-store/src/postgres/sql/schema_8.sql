-- Version 8: webhooks.
--
-- Details of an attempt as JSON: for a webhook the response's status, headers and the beginning of its body.
ALTER TABLE redrive.attempt ADD COLUMN detail text;

CREATE INDEX attempt_subscription ON redrive.attempt (subscription, key);
CREATE INDEX dead_letter_subscription ON redrive.dead_letter (subscription, created_at, event_key, key);

-- Index of the backlog: deliveries that wait for their subscription's limits have this ready time, which never comes.
CREATE INDEX delivery_backlog ON redrive.delivery (subscription, key) WHERE ready_at = 9000000000000000;

-- Documents: configuration that is changed at run time, such as endpoints, tokens and replays. `key` is kind and id
-- (`endpoint/…`), `body` is JSON, `version` counts the changes.
CREATE TABLE redrive.document (
  key        text COLLATE "C" PRIMARY KEY,
  version    bigint NOT NULL,
  body       text NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL
);
