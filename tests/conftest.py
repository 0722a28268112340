"""Makes `ranks` importable: pytest puts the folder of this file on the path."""
