-- What people correct, as new rows; dead letters that a retry took; hours of telemetry; what the
-- boards need of the catalog. A correction is a reversal and new rows beside it: nothing is changed.

ALTER TABLE slices ADD COLUMN IF NOT EXISTS correction String DEFAULT '';

ALTER TABLE slices ADD COLUMN IF NOT EXISTS reverses String DEFAULT '';

CREATE TABLE IF NOT EXISTS corrections
(
    id String,
    at_ms Int64,
    author LowCardinality(String),
    why String,
    what LowCardinality(String),
    from_ms Int64,
    to_ms Int64,
    revision Int64,
    sequence UInt64
)
ENGINE = MergeTree
ORDER BY (at_ms, id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS letters_taken
(
    id String,
    at_ms Int64,
    author LowCardinality(String)
)
ENGINE = MergeTree
ORDER BY id
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE telemetry_minute ADD COLUMN IF NOT EXISTS gain Nullable(Float64);

CREATE TABLE IF NOT EXISTS telemetry_hour
(
    reading LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    hour_ms Int64,
    minutes Int64,
    samples Int64,
    mean Nullable(Float64),
    low Nullable(Float64),
    high Nullable(Float64),
    gain Nullable(Float64),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (reading, node, device, hour_ms)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 1200 DAY;

CREATE TABLE IF NOT EXISTS lease_hours
(
    lease String,
    tenant LowCardinality(String),
    project LowCardinality(String),
    workload_class LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    hour_ms Int64,
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
ORDER BY (lease, pool, model, hour_ms)
TTL toDateTime(fromUnixTimestamp64Milli(hour_ms, 'UTC')) + INTERVAL 1200 DAY;

CREATE TABLE IF NOT EXISTS holdings
(
    id String,
    lease String,
    tenant LowCardinality(String),
    project LowCardinality(String),
    workload_class LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    parts Int64,
    from_ms Int64,
    to_ms Int64,
    sequence UInt64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(from_ms, 'UTC'))
ORDER BY (from_ms, node, device, id)
TTL toDateTime(fromUnixTimestamp64Milli(from_ms, 'UTC')) + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS catalog_models
(
    revision Int64,
    model LowCardinality(String),
    vendor LowCardinality(String),
    family LowCardinality(String),
    release_year Int64,
    tdp_watts Decimal(18, 6),
    workload_class LowCardinality(String),
    rating_micro Int64,
    provenance LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (revision, workload_class, model);

CREATE TABLE IF NOT EXISTS catalog_costs
(
    revision Int64,
    pool LowCardinality(String),
    model LowCardinality(String),
    from_ms Int64,
    to_ms Int64,
    card_hour Decimal(38, 9),
    currency LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (revision, pool, model, from_ms);

CREATE TABLE IF NOT EXISTS catalog_caps
(
    revision Int64,
    tenant LowCardinality(String),
    sort LowCardinality(String),
    workload_class LowCardinality(String),
    family LowCardinality(String),
    model LowCardinality(String),
    micro Decimal(38, 0),
    cards Nullable(Int64)
)
ENGINE = ReplacingMergeTree
ORDER BY (revision, tenant, sort, workload_class, family, model);

CREATE TABLE IF NOT EXISTS catalog_profiles
(
    revision Int64,
    profile LowCardinality(String),
    workload_class LowCardinality(String),
    time_to_place_ms Nullable(Int64)
)
ENGINE = ReplacingMergeTree
ORDER BY (revision, profile)
