-- A batch is begun by its archive: from there on its range is known, and its rows follow from it.
-- `settled` is the position as the batch began, so that neither an intent nor a position needs a
-- synced insert of its own.

ALTER TABLE transitions ADD COLUMN IF NOT EXISTS settled UInt64 DEFAULT 0;

DROP TABLE IF EXISTS intents
