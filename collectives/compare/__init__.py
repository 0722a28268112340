"""One workload over three ways of moving bytes: run, compared byte for byte, and told in one table."""

from collectives.compare.report import Comparison, Measured, table
from collectives.compare.workloads import WORKLOADS, Setting, make

__all__ = ["WORKLOADS", "Comparison", "Measured", "Setting", "make", "table"]
