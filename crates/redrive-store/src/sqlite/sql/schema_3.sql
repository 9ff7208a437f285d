-- Version 3: the subscriptions that handled an event at an earlier attempt and may skip the next one.
--
-- A JSON array of names. A column and not a table: it is empty for events that succeed at once, the claim reads the row anyway, and
-- it is deleted with the event.
ALTER TABLE event ADD COLUMN handled TEXT;
