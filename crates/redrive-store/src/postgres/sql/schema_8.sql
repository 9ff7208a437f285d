-- Version 8: webhooks.
--
-- What a target tells of an attempt: for a webhook the answer's status, headers and the beginning of its body. JSON.
ALTER TABLE redrive.attempt ADD COLUMN detail text;

CREATE INDEX attempt_subscription ON redrive.attempt (subscription, key);
CREATE INDEX dead_letter_subscription ON redrive.dead_letter (subscription, created_at, event_key, key);

-- What is held until its subscription calls for it is ready at this instant, which never comes. Nothing else is in this index.
CREATE INDEX delivery_held ON redrive.delivery (subscription, key) WHERE ready_at = 9000000000000000;

-- What is configured while it runs, and survives it: endpoints, tokens, replays. `key` is its kind and its id (`endpoint/…`), `body`
-- is JSON, `version` counts its changes.
CREATE TABLE redrive.document (
  key        text COLLATE "C" PRIMARY KEY,
  version    bigint NOT NULL,
  body       text NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL
);
