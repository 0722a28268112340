"""What each rank of a calibration job runs: `python -m collectives.calibrate MODULE ARGUMENT... OUT.json`."""

import importlib
import sys

importlib.import_module(f"collectives.calibrate.{sys.argv[1]}").main(*sys.argv[2:])
