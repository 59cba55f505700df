-- What was read of the ledger, how far it was folded, and what could not be.
-- Usage rests on these tables: what they acknowledge is on disk.

CREATE TABLE IF NOT EXISTS transitions
(
    sequence UInt64,
    at_ms Int64,
    epoch Int64,
    writer LowCardinality(String),
    body String CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY sequence
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS writers
(
    generation UInt64,
    writer String,
    at_ms Int64
)
ENGINE = MergeTree
ORDER BY generation
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS intents
(
    generation UInt64,
    first UInt64,
    last UInt64
)
ENGINE = MergeTree
ORDER BY first
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS positions
(
    generation UInt64,
    sequence UInt64,
    at_ms Int64,
    checkpoint String CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY sequence
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS price_lists
(
    revision Int64,
    body String CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY revision
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS dead_letters
(
    id String,
    stream LowCardinality(String),
    sequence UInt64,
    place Int32,
    at_ms Int64,
    code LowCardinality(String),
    message String,
    body String CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY (stream, sequence, place)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
