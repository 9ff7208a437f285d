-- Version 6: who has a part in a retry budget that processes have in common.
--
-- Not worth a log: after a crash of the server everybody says within seconds that he is there.
CREATE UNLOGGED TABLE redrive.budget_part (
  subscription text NOT NULL,
  node         uuid NOT NULL,   -- as `boot` in `process`
  retries_left bigint NOT NULL, -- in the part of this process when it was told; nobody goes by it
  at           bigint NOT NULL, -- when it was told
  PRIMARY KEY (subscription, node)
) WITH (fillfactor = 50);
