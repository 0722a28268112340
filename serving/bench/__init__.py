"""`superpod bench serve`: load on an HTTP server, and vLLM's report of it in virtual time."""
