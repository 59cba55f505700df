-- What boards read, by time first: usage by the hour, and telemetry laid out so that a stretch of
-- time is one stretch of the table. All of it is recomputed whole from rows below it, never added to.

CREATE TABLE IF NOT EXISTS usage_hours
(
    hour_ms Int64,
    tenant LowCardinality(String),
    project LowCardinality(String),
    profile LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    vendor LowCardinality(String),
    workload_class LowCardinality(String),
    currency LowCardinality(String),
    part_ms Decimal(38, 0),
    quantity Decimal(38, 0),
    nominal_quantity Decimal(38, 0),
    cost Decimal(38, 9),
    estimated Decimal(38, 0),
    unpriced Decimal(38, 0),
    slices Int64,
    adjustments Int64,
    corrected Int64,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, tenant, project, profile, pool, model, vendor, workload_class, currency)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS telemetry_minutes
(
    minute_ms Int64 CODEC(Delta, ZSTD(1)),
    reading LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    samples Int64 CODEC(ZSTD(1)),
    mean Nullable(Float64) CODEC(ZSTD(1)),
    low Nullable(Float64) CODEC(ZSTD(1)),
    high Nullable(Float64) CODEC(ZSTD(1)),
    gain Nullable(Float64) CODEC(ZSTD(1)),
    version UInt64 CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMMDD(fromUnixTimestamp64Milli(minute_ms, 'UTC'))
ORDER BY (minute_ms, reading, node, device)
TTL toDateTime(fromUnixTimestamp64Milli(minute_ms, 'UTC')) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1;

INSERT INTO telemetry_minutes
SELECT minute_ms, reading, node, device, samples, mean, low, high, gain, version
FROM telemetry_minute
SETTINGS max_partitions_per_insert_block = 0;

TRUNCATE TABLE telemetry_minute;

CREATE TABLE IF NOT EXISTS telemetry_hours
(
    hour_ms Int64 CODEC(Delta, ZSTD(1)),
    reading LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    minutes Int64 CODEC(ZSTD(1)),
    samples Int64 CODEC(ZSTD(1)),
    mean Nullable(Float64) CODEC(ZSTD(1)),
    low Nullable(Float64) CODEC(ZSTD(1)),
    high Nullable(Float64) CODEC(ZSTD(1)),
    gain Nullable(Float64) CODEC(ZSTD(1)),
    version UInt64 CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, reading, node, device)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 1200 DAY;

INSERT INTO telemetry_hours
SELECT hour_ms, reading, node, device, minutes, samples, mean, low, high, gain, version
FROM telemetry_hour
SETTINGS max_partitions_per_insert_block = 0;

TRUNCATE TABLE telemetry_hour;

CREATE TABLE IF NOT EXISTS telemetry_fleet
(
    step_ms Int64,
    at_ms Int64 CODEC(Delta, ZSTD(1)),
    reading LowCardinality(String),
    devices Int64,
    silent Int64,
    samples Int64,
    means Int64,
    mean_sum Float64,
    low Nullable(Float64),
    high Nullable(Float64),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(at_ms, 'UTC'))
ORDER BY (step_ms, reading, at_ms)
TTL toDateTime(fromUnixTimestamp64Milli(at_ms, 'UTC')) + INTERVAL 1200 DAY;

CREATE TABLE IF NOT EXISTS nodes_seen
(
    hour_ms Int64,
    node LowCardinality(String),
    newest_ms Int64
)
ENGINE = ReplacingMergeTree(newest_ms)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, node)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 400 DAY;

CREATE TABLE IF NOT EXISTS leases_by_hour
(
    hour_ms Int64,
    lease String,
    tenant LowCardinality(String),
    project LowCardinality(String),
    workload_class LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    held_ms Float64,
    covered_ms Float64,
    busy_ms Float64,
    device_level_only UInt8,
    cost Decimal(38, 9),
    used_cost Nullable(Decimal(38, 9)),
    currency LowCardinality(String),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, lease, pool, model)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 1200 DAY;

INSERT INTO leases_by_hour
SELECT hour_ms, lease, tenant, project, workload_class, pool, model, held_ms, covered_ms, busy_ms,
    device_level_only, cost, used_cost, currency, version
FROM lease_hours
SETTINGS max_partitions_per_insert_block = 0;

TRUNCATE TABLE lease_hours;

CREATE TABLE IF NOT EXISTS held_hours
(
    hour_ms Int64,
    tenant LowCardinality(String),
    project LowCardinality(String),
    workload_class LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    currency LowCardinality(String),
    held_ms Float64,
    covered_ms Float64,
    busy_ms Float64,
    idle_ms Float64,
    cost Decimal(38, 9),
    used_cost Nullable(Decimal(38, 9)),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, tenant, project, workload_class, pool, model, currency)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 1200 DAY
