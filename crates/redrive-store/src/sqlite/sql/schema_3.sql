-- Version 3: which subscriptions have handled an event that is to be tried again, and are not to be asked once more.
--
-- A JSON array of names. A column and not a table: it is empty for everything that succeeds at once, it is read by the claim that
-- reads the row anyway, and it goes with the event.
ALTER TABLE event ADD COLUMN handled TEXT;
