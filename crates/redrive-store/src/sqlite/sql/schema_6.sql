-- Version 6: schedules.
--
-- 1 if the event was published for a date (`due_at`), which stays as it is when the machine's clock is set. All other due times are
-- delays and move with the clock.
ALTER TABLE event ADD COLUMN scheduled INTEGER NOT NULL DEFAULT 0;
