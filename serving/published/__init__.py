"""Published figures of serving, measured again on the emulated machine: `superpod calibrate --serving`.

cases     what is measured: a published case or one of a user's own
system    the two published systems: what they are charged beside the priced model
routing   who sends how many rows to whom, from a seed
split     the cores of the two streams of a case
kept      cases that have been measured
lanes     rows through the machine: pulled (XCCL) or pushed (CANN)
decode, prefill   one iteration of a pod, layer by layer, on every rank
figures   from what the ranks measured to the published rows' own quantities
report    published, emulated, error and status
"""
