"""Recovery in place: the survivors of a death go on serving."""
