-- Version 5: circuits that the processes have in common, and what each has counted for them.
--
-- Neither is worth a log: after a crash of the server every circuit is closed and every count is zero, as after the start of a
-- process. So a report costs no WAL and no sync.
CREATE UNLOGGED TABLE redrive.circuit (
  subscription text PRIMARY KEY,
  generation   bigint NOT NULL,  -- another one after every change; who changes it must know the one before
  until        bigint,           -- when a probe may go; empty if it is closed
  probe_until  bigint,           -- the end of a probe's lease
  openings     bigint NOT NULL   -- how often it has opened without closing in between
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE redrive.circuit_count (
  subscription text NOT NULL,
  node         uuid NOT NULL,   -- as `boot` in `process`
  generation   bigint NOT NULL, -- of the circuit when it was counted
  succeeded    bigint NOT NULL,
  failed       bigint NOT NULL,
  at           bigint NOT NULL,
  PRIMARY KEY (subscription, node)
) WITH (fillfactor = 50);
