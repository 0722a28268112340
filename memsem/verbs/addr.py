"""Addresses, under the module name of pyverbs."""

from memsem.verbs.ah import AH as AH
from memsem.verbs.qpcap import AHAttr as AHAttr
