-- Version 7: the subscriptions of each process, so that no other process finishes an event that a remote subscription matches.
--
-- A row counts while its process is in `process`.
CREATE TABLE redrive.subscriber (
  boot       uuid NOT NULL,   -- as in `process`
  name       text NOT NULL,   -- of the subscription
  event_type text NOT NULL,   -- its pattern
  at         bigint NOT NULL, -- when it was announced
  PRIMARY KEY (boot, name)
);
