"""One decode iteration of a whole pod, every dispatch and combine called, beside the published one."""
