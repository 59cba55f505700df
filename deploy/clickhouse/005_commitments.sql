-- Paid floors of adopted revisions, to be held against what was used.

CREATE TABLE IF NOT EXISTS catalog_commitments
(
    revision Int64,
    commitment LowCardinality(String),
    tenant LowCardinality(String),
    workload_class LowCardinality(String),
    pool LowCardinality(String),
    family LowCardinality(String),
    model LowCardinality(String),
    micro Decimal(38, 0),
    cards Int64,
    from_ms Int64,
    to_ms Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (revision, commitment)
