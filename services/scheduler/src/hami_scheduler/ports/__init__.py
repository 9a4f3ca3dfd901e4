"""What the use cases need of the world, in domain terms; `adapters/` has how.

All calls are bounded in time and raise only from `hamicommon.errors`.
"""

from hami_scheduler.ports.allocations import (
    AllocationLedger,
    AllocationStore,
    LedgerReader,
    QuotaStore,
)
from hami_scheduler.ports.apiserver import (
    ClaimApi,
    ClaimWriter,
    NodeApi,
    PodApi,
    PodEvent,
    PodEvents,
    TemplateApi,
)
from hami_scheduler.ports.cards import (
    AgentInventory,
    CardReader,
    CounterStore,
    InventoryStore,
    LedgerCard,
    NodeGroupStore,
    PairScores,
    RecordedInventory,
    RepairedCard,
    RepairedSequence,
)
from hami_scheduler.ports.nodes import AgentNotReady, GrantAnnouncer, NodeLock, NodeWitness
from hami_scheduler.ports.records import (
    DecisionLog,
    DecisionRow,
    DriftJournal,
    OpenWait,
    WaitLedger,
)

__all__ = [
    "AgentInventory",
    "AgentNotReady",
    "AllocationLedger",
    "AllocationStore",
    "CardReader",
    "ClaimApi",
    "ClaimWriter",
    "CounterStore",
    "DecisionLog",
    "DecisionRow",
    "DriftJournal",
    "GrantAnnouncer",
    "InventoryStore",
    "LedgerCard",
    "LedgerReader",
    "NodeApi",
    "NodeGroupStore",
    "NodeLock",
    "NodeWitness",
    "OpenWait",
    "PairScores",
    "PodApi",
    "PodEvent",
    "PodEvents",
    "QuotaStore",
    "RecordedInventory",
    "RepairedCard",
    "RepairedSequence",
    "TemplateApi",
    "WaitLedger",
]
