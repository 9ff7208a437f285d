-- Version 3: leader election, and the leader's statistics.
--
-- One row with a lease: the leader renews it, and a process that finds it expired acquires it.
CREATE TABLE redrive.leader (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  boot   uuid NOT NULL,   -- the open store that leads, as in `process`
  since  bigint NOT NULL, -- when it acquired the lease
  until  bigint NOT NULL  -- the end of its lease
);

INSERT INTO redrive.leader (boot, since, until) VALUES ('00000000-0000-0000-0000-000000000000', 0, 0);

CREATE TABLE redrive.statistics (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  at     bigint NOT NULL,
  stats  text NOT NULL -- JSON
);
