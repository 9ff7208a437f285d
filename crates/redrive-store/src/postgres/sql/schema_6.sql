-- Version 6: the processes that share a retry budget.
--
-- Unlogged: after a crash of the server every process reports again within seconds.
CREATE UNLOGGED TABLE redrive.budget_share (
  subscription text NOT NULL,
  node         uuid NOT NULL,   -- as `boot` in `process`
  retries_left bigint NOT NULL, -- in this process's share; informative only
  at           bigint NOT NULL, -- when the process reported
  PRIMARY KEY (subscription, node)
) WITH (fillfactor = 50);
