"""Which replica answers the calls of kube-scheduler; pure but for its clock.

What one replica decides and binds goes to the ledger and to the nodes in batches, and its plans
rest on a view that nobody else changes, so calls are best answered by one. That is the replica to
which a call came while no other was known to lead; it leads until calls come to others alone.
Nothing rests on there being one leader at most: two of them are as safe as replicas that know of
none, and the first announcement that either hears ends it.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_IN_A_ROW = 64
"""So many calls that came to others, one after the other, end a lead: with calls by chance each
replica gets some, and after a change of the Service's choice the leader gets none."""
HEARD_S = 3.0
"""So long a leader is known after its last announcement; they come each second."""
UNFIT_S = 30.0
"""So long who can't decide does not lead again."""


class LeadingReplica:
    """What this replica knows of it."""

    def __init__(self, replica: str, clock: Callable[[], float]) -> None:
        """`replica`: this one's name; `clock`: seconds."""
        self.replica = replica
        self._clock = clock
        self._leader = ""
        """Another one; empty: none is known."""
        self._heard_s = self._unfit_until_s = float("-inf")
        self.leads = False
        """Whether this replica does."""
        self._in_a_row = 0

    @property
    def follows(self) -> bool:
        """Whether another one is known to lead."""
        heard = bool(self._leader) and self._clock() - self._heard_s < HEARD_S
        return heard and not self.leads

    def forwarded(self) -> None:
        """A call came here from another replica."""
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            self.leads = False

    def called(self) -> str:
        """A call came here: the replica that is to answer it; empty: this one."""
        if self.follows:
            return self._leader
        self.leads = self._clock() >= self._unfit_until_s
        self._in_a_row = 0
        return ""

    def heard(self, replica: str, *, leads: bool) -> bool:
        """An announcement; whether the others need to know at once if this one leads.

        Of two that lead the one whose name comes first goes on; who else heard of both follows the
        last announcement, which is the first's then.
        """
        if replica == self.replica:
            return False
        if not leads:
            self.lost(replica)
            return False
        led = self.leads
        if not led or replica < self.replica:
            self.leads = False
            self._leader, self._heard_s = replica, self._clock()
        return led

    def lost(self, replica: str) -> None:
        """It does not answer, or does not lead any more."""
        if replica == self._leader:
            self._leader = ""

    def resign(self) -> None:
        """This replica can't decide at present."""
        self.leads = False
        self._unfit_until_s = self._clock() + UNFIT_S
