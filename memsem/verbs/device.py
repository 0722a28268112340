"""Contexts, under the module name of pyverbs."""

from memsem.verbs.context import Context as Context
from memsem.verbs.device_attr import AsyncEvent as AsyncEvent
from memsem.verbs.device_attr import DeviceAttr as DeviceAttr
from memsem.verbs.device_attr import PortAttr as PortAttr
