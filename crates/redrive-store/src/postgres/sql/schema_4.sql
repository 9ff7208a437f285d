-- Version 4: subscriptions that have handled an event, so that a retry skips them.
--
-- A JSON array of names. A column and not a table: it is NULL for events that succeed at once, the claim reads it with the row,
-- and it is deleted with the event.
ALTER TABLE redrive.event ADD COLUMN handled text;
