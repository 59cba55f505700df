-- Slices, capacity, censuses. A row is read once by its id (LIMIT 1 BY id), whatever was
-- written twice after a crash; nothing that is printed with a currency rests on a merge or a view.

CREATE TABLE IF NOT EXISTS slices
(
    id String,
    kind LowCardinality(String),
    lease String,
    tenant LowCardinality(String),
    project LowCardinality(String),
    labels Map(String, String),
    profile LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    vendor LowCardinality(String),
    workload_class LowCardinality(String),
    from_ms Int64,
    to_ms Int64,
    devices Int64,
    parts Int64,
    part_ms Decimal(38, 0),
    rating_micro Int64,
    rating_version LowCardinality(String),
    provenance LowCardinality(String),
    quantity Decimal(38, 0),
    nominal_quantity Decimal(38, 0),
    price Nullable(Decimal(38, 6)),
    price_per LowCardinality(String),
    price_list LowCardinality(String),
    cost Decimal(38, 9),
    currency LowCardinality(String),
    revision Int64,
    sequence UInt64,
    home_pool LowCardinality(String),
    home_model LowCardinality(String)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(from_ms, 'UTC'))
ORDER BY (tenant, from_ms, lease, id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS capacity
(
    id String,
    kind LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    hour_ms Int64,
    reason LowCardinality(String),
    part_ms Decimal(38, 0),
    sequence UInt64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(fromUnixTimestamp64Milli(hour_ms, 'UTC'))
ORDER BY (hour_ms, pool, model, reason, id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS censuses
(
    id String,
    sequence UInt64,
    at_ms Int64,
    cause LowCardinality(String),
    cells Int64,
    differences String
)
ENGINE = MergeTree
ORDER BY (sequence, id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
