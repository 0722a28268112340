"""Micro-benchmarks of the three ways to move a byte, told in the formats people already parse."""

from memsem.bench.formats import render
from memsem.bench.shapes import BenchSpec, Sample, parse_sizes

__all__ = ["BenchSpec", "Sample", "parse_sizes", "render"]
