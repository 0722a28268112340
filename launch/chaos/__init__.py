"""`superpod chaos`: plans from seeds, a serving run under each, what must hold, and a report."""
