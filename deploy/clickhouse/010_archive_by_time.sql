-- The archive lies by sequence, and its time only grows with it: so that a question about a day of it
-- reads that day, and not every message that ever was.

ALTER TABLE transitions ADD INDEX IF NOT EXISTS by_time at_ms TYPE minmax GRANULARITY 1;

ALTER TABLE transitions MATERIALIZE INDEX by_time
