"""A result → rows of perf.csv, appended without loss."""
