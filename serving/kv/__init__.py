"""The KV cache as decisions: blocks, block tables, prefix reuse, tiers. No bytes, no device, no clock."""
