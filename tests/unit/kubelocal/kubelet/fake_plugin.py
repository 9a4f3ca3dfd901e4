"""A device plugin without gRPC, which records its calls."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from kubelocal.kubelet.devices.state import AllocateAnswer, Device, PluginError, PluginOptions


@dataclass
class FakePlugin:
    """Lists `count` devices once and then waits; `refuse` holds the calls that fail."""

    count: int = 4
    wanted: PluginOptions = field(
        default_factory=lambda: PluginOptions(pre_start_required=True, preferred_allocation=True)
    )
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)
    prefer: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    def names(self) -> list[str]:
        """The calls, in order."""
        return [name for name, _ in self.calls]

    async def options(self) -> PluginOptions:
        return self.wanted

    async def device_lists(self) -> AsyncIterator[list[Device]]:
        yield [Device(id=f"gpu-{i}", healthy=True) for i in range(self.count)]
        await self.gone.wait()
        raise PluginError("rpc error: code = Unavailable desc = gone")

    async def preferred_ids(
        self, available: Iterable[str], must_include: Iterable[str], size: int
    ) -> list[str]:
        self._record_call("preferred_ids", must_include)
        return self.prefer

    async def allocate(self, ids: Iterable[str]) -> AllocateAnswer:
        self._record_call("allocate", ids)
        return AllocateAnswer(raw=b"", envs={"IDS": ",".join(sorted(ids))})

    async def pre_start(self, ids: Iterable[str]) -> None:
        self._record_call("pre_start", ids)

    async def close(self) -> None:
        self.closed = True

    def _record_call(self, name: str, ids: Iterable[str]) -> None:
        self.calls.append((name, tuple(sorted(ids))))
        if name in self.refuse:
            raise PluginError(f"rpc error: code = Unknown desc = {name} refused")
