"""One fault plan over windows, verbs and messages: what each lets one notice, when, at what cost."""
