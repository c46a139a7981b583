//! Measurement: plexus perf, the block workload, their reports and charts.
