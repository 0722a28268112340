"""Expert-parallel load balancing: redundant experts from counted loads, and what they are worth."""
