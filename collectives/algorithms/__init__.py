"""Algorithms of collectives as pure functions: size, rank and bytes give the steps of one rank."""
