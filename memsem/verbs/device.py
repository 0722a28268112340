"""Contexts, under the module name of pyverbs."""

from memsem.verbs.context import AsyncEvent as AsyncEvent
from memsem.verbs.context import Context as Context
from memsem.verbs.context import DeviceAttr as DeviceAttr
from memsem.verbs.context import PortAttr as PortAttr
