-- What agents and the placer report beside the ledger. No bill rests on it.
-- Rollups are recomputed whole for a minute and replace the older version of it; partitions go by
-- the time at which the bus stored a message, because an agent's clock may be anything.

CREATE TABLE IF NOT EXISTS telemetry_raw
(
    sequence UInt64,
    stored_ms Int64,
    at_ms Int64 CODEC(Delta, ZSTD(1)),
    minute_ms Int64 CODEC(Delta, ZSTD(1)),
    node LowCardinality(String),
    boot_id LowCardinality(String),
    device LowCardinality(String),
    reading LowCardinality(String),
    value Nullable(Float64) CODEC(ZSTD(1)),
    quality LowCardinality(String)
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(fromUnixTimestamp64Milli(stored_ms, 'UTC'))
ORDER BY (minute_ms, reading, node, device, at_ms)
TTL toDateTime(fromUnixTimestamp64Milli(stored_ms, 'UTC')) + INTERVAL 7 DAY
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS telemetry_minute
(
    reading LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    minute_ms Int64,
    samples Int64,
    mean Nullable(Float64),
    low Nullable(Float64),
    high Nullable(Float64),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(minute_ms, 'UTC'))
ORDER BY (reading, node, device, minute_ms)
TTL toDateTime(fromUnixTimestamp64Milli(minute_ms, 'UTC')) + INTERVAL 400 DAY;

CREATE TABLE IF NOT EXISTS health_events
(
    sequence UInt64,
    stored_ms Int64,
    at_ms Int64,
    node LowCardinality(String),
    boot_id LowCardinality(String),
    device String,
    kind LowCardinality(String),
    before LowCardinality(String),
    after LowCardinality(String),
    code LowCardinality(String),
    message String
)
ENGINE = MergeTree
ORDER BY (node, at_ms, sequence)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS decisions
(
    sequence UInt64,
    stored_ms Int64,
    at_ms Int64,
    tenant LowCardinality(String),
    request_id String,
    verb LowCardinality(String),
    verdict LowCardinality(String),
    code LowCardinality(String),
    lease String,
    micros Int64,
    candidates Int64,
    reasons Map(String, Int64),
    catalog_revision Int64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(stored_ms, 'UTC'))
ORDER BY (tenant, at_ms, sequence)
TTL toDateTime(fromUnixTimestamp64Milli(stored_ms, 'UTC')) + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS stream_positions
(
    stream LowCardinality(String),
    created String,
    sequence UInt64
)
ENGINE = ReplacingMergeTree(sequence)
ORDER BY (stream, created)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
