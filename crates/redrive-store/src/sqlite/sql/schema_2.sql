-- Version 2: idempotency keys and the audit log.
--
-- state: 1 in progress (`until` is the end of the lease), 2 completed, 3 failed (`until` is the end of the retention)
CREATE TABLE idempotency (
  key         TEXT PRIMARY KEY,
  fingerprint BLOB NOT NULL,
  state       INTEGER NOT NULL,
  owner       BLOB,
  until       INTEGER NOT NULL,
  result      TEXT, -- the result of a completed call, or the error of a failed one
  metadata    TEXT,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_idempotency_until ON idempotency(until);

CREATE TABLE audit (
  key  INTEGER PRIMARY KEY,
  at   INTEGER NOT NULL,
  line TEXT NOT NULL -- the audit event as JSON
) STRICT;

CREATE INDEX idx_audit_at ON audit(at);
