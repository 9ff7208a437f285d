-- Version 7: what each process has subscribed to, so that no other one finishes an event as if nobody wanted it.
--
-- A row counts as long as its process is in `process`.
CREATE TABLE redrive.subscriber (
  boot       uuid NOT NULL,   -- as in `process`
  name       text NOT NULL,   -- of the subscription
  event_type text NOT NULL,   -- its pattern
  at         bigint NOT NULL, -- when it was told
  PRIMARY KEY (boot, name)
);
