"""Tensor parallelism inside a DP group: several ranks serve one group's requests together."""
