"""Shards: Parquet files of samples with exact ids and mask, and the manifest that says they are
whole.
"""
