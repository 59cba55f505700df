-- A partition that is rated by itself is charged as a whole by itself: `quantity` is then devices x
-- charged_parts x ms x rating, while `part_ms` and conservation go by the parts of its card.

ALTER TABLE slices ADD COLUMN IF NOT EXISTS charged_parts Int64 DEFAULT parts;

ALTER TABLE slices ADD COLUMN IF NOT EXISTS partition LowCardinality(String) DEFAULT ''
