"""A run of a script from beginning to end, and the shortening of one that fails."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulation.fake_time import fake_time
from tests.simulation.happenings import Happenings
from tests.simulation.scripts import Action, Scenario, scenario
from tests.simulation.settling import settle
from tests.simulation.world import World

MAX_TRIES = 60
SHOWN_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one run."""

    steps: int
    starts: int
    commits: int
    digest: str
    history: tuple[str, ...]
    error: BaseException | None


def run(wanted: Scenario) -> Run:
    """Play the script, then let the system settle."""
    with fake_time(wanted.seed) as loop:
        return loop.run_until_complete(_run(wanted))


async def _run(wanted: Scenario) -> Run:
    world = World(wanted)
    script = Happenings(world)
    error: BaseException | None = None
    try:
        await world.begin()
        began = asyncio.get_running_loop().time()
        for action in wanted.actions:
            await asyncio.sleep(max(0.0, began + action.at - asyncio.get_running_loop().time()))
            script.act(action)
            world.raise_if_broken()
        await settle(world)
        world.raise_if_broken()
    except Exception as exc:  # noqa: BLE001 - what a history ends with is its result
        error = exc
    finally:
        await world.end()
    return Run(
        steps=world.steps,
        starts=world.model.starts,
        commits=world.model.commits,
        digest=world.digest(),
        history=tuple(world.history),
        error=error,
    )


def shrunk(failing: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Remove actions that the failure does not need: halves first, then one by one."""
    best, tries = failing, 0
    size = max(1, len(best.actions) // 2)
    while size:
        start = 0
        while start < len(best.actions) and tries < MAX_TRIES:
            tries += 1
            shorter = _without(best, start, size)
            if fails(shorter):
                best = shorter
            else:
                start += size
        size //= 2
    return best


def _without(whole: Scenario, start: int, size: int) -> Scenario:
    kept: tuple[Action, ...] = (*whole.actions[:start], *whole.actions[start + size :])
    return replace(whole, actions=kept)


def _kind(error: BaseException) -> tuple[type[BaseException], str]:
    """Return the common part of equal failures: all but names, numbers and amounts."""
    label = re.match(r"[A-Z]+-\d+", str(error))
    text = re.sub(r"\S*\d\S*|[\[({].*", "", str(error))
    return type(error), (label[0] if label else "") + text


def check(seed: str) -> Run:
    """Play the scenario of a seed.

    Raises: AssertionError with the seed, broken promise, and shortest script that breaks it.
    """
    wanted = scenario(seed)
    found = run(wanted)
    if found.error is None:
        return found
    failure = _kind(found.error)

    def fails(shorter: Scenario) -> bool:
        error = run(shorter).error
        return error is not None and _kind(error) == failure

    shortest = shrunk(wanted, fails)
    last = run(shortest)
    script = "\n".join(f"  {action.at:8.3f} {action}" for action in shortest.actions)
    lines = "\n".join(f"  {line}" for line in last.history[-SHOWN_LINES:])
    raise AssertionError(
        f"seed {seed!r}, step {found.steps}: {found.error!r}\n"
        f"{len(shortest.actions)} of {len(wanted.actions)} actions are enough "
        f"({last.error!r}):\n{script}\nlast steps:\n{lines}"
    ) from found.error
