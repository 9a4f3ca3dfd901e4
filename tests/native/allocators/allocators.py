"""Every way in which a program gets device memory, as pairs of "take" and "give back".

Part of the program under test (client.py imports it): each kind makes real driver calls through
ctypes. `take(bytes)` returns a CUresult and, on success, what gives the memory back.
"""

from tests.native.allocators import graph_allocators, memory_allocators, object_allocators
from tests.native.allocators.allocation import KINDS, GiveBack, Kind

# Each module adds its kinds when it is imported.
MODULES = (memory_allocators, object_allocators, graph_allocators)

__all__ = ["KINDS", "MODULES", "GiveBack", "Kind"]
