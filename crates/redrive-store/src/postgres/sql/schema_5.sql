-- Version 5: shared circuit breakers, and the counts that each process reports.
--
-- Unlogged: a report costs no WAL and no sync. After a crash of the server every circuit is closed and every count is zero, as
-- after the start of a process.
CREATE UNLOGGED TABLE redrive.circuit (
  subscription text PRIMARY KEY,
  generation   bigint NOT NULL,  -- increases with every change; a change is a compare-and-swap on it
  until        bigint,           -- when a probe may run; NULL if the circuit is closed
  probe_until  bigint,           -- the end of a probe's lease
  openings     bigint NOT NULL   -- the number of times it opened since it was last closed
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE redrive.circuit_count (
  subscription text NOT NULL,
  node         uuid NOT NULL,   -- as `boot` in `process`
  generation   bigint NOT NULL, -- the circuit's generation of these counts
  succeeded    bigint NOT NULL,
  failed       bigint NOT NULL,
  at           bigint NOT NULL,
  PRIMARY KEY (subscription, node)
) WITH (fillfactor = 50);
