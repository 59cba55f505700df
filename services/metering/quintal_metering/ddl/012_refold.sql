-- A message that could be read only later changes what the fold at a census comes to: the newest
-- comparison counts, the earlier ones stay.

ALTER TABLE censuses ADD COLUMN IF NOT EXISTS refolded UInt64 DEFAULT 0
