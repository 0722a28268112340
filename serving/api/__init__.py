"""The front of the serving engine: OpenAI's protocol over HTTP, tokenizer and chat template, for processes
that never load torch."""
