"""Vendors whose device plugin registers its cards in an annotation of the Node (protocol 2.3)."""

from __future__ import annotations

from typing import Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface.standard import StandardVendor, answers_handshake


class RegisteredVendor(StandardVendor, Protocol):
    """A vendor with a register annotation and, unless it overrides `plugin_alive`, a handshake."""

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The cards in the node's register annotation, JSON or CSV; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        text = keys.annotations_of(node).get(self.keys.register, "")
        return keys.decode_register(text, vendor=self.name) if text else ()

    def plugin_alive(self, node: Json) -> bool:
        """See `answers_handshake`."""
        return answers_handshake(node, self.keys.handshake, self.resources.count)
