"""External benchmarks: a suite runs a model on data of others, beside the published numbers."""
