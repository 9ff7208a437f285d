-- Version 2: what has been done under which key, and the audit log.
--
-- state: 1 in progress (`until` is the end of the lease), 2 completed, 3 failed (`until` is the end of keeping)
CREATE TABLE idempotency (
  key         TEXT PRIMARY KEY,
  fingerprint BLOB NOT NULL,
  state       INTEGER NOT NULL,
  owner       BLOB,
  until       INTEGER NOT NULL,
  result      TEXT, -- of what is completed, or the error of what failed
  metadata    TEXT,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_idempotency_until ON idempotency(until);

CREATE TABLE audit (
  key  INTEGER PRIMARY KEY,
  at   INTEGER NOT NULL,
  line TEXT NOT NULL -- JSON, as in a log of JSON lines
) STRICT;

CREATE INDEX idx_audit_at ON audit(at);
