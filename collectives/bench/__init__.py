"""What `superpod bench coll` and `superpod bench ep` run on every rank, and how results are told."""
