"""A receiver of OTLP for people without a Collector: exports in, native Parquet out."""
