-- Version 3: which process does what one does for all, and what it has counted.
--
-- One row, under a lease: who leads renews it, and whoever finds that it has run out leads from then on.
CREATE TABLE redrive.leader (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  boot   uuid NOT NULL,   -- which opening of a store, as in `process`
  since  bigint NOT NULL, -- it has led from then on without a gap
  until  bigint NOT NULL  -- the end of its lease
);

INSERT INTO redrive.leader (boot, since, until) VALUES ('00000000-0000-0000-0000-000000000000', 0, 0);

CREATE TABLE redrive.statistics (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  at     bigint NOT NULL,
  stats  text NOT NULL -- JSON
);
