"""Re-measuring published figures on the emulator: what `superpod calibrate` runs and prints.

published.json   every figure, with unit, conditions and source
rows.toml        what becomes of each: input, fitted, predicted, superseded, out of scope
cases            exchanges to be measured, and the bytes their GB/s count
job              the program of the ranks; measure, hops, links: what it does
estimate         the same in closed form; numbers were fitted with it
report           both sides together
"""
