"""`hamictl up` and `hamictl down`: run the whole system on this machine, with demo pods.

The demo is the pods of `examples/`, applied in order, until each runs or shows why it waits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamilocal.supervisor.state_file import SupervisorError, read_state, stop_running
from hamilocal.system import control
from hamilocal.system.layout import Layout, project, require_driver
from hamilocal.system.options import UpOptions
from pydantic import ValidationError
from rich.live import Live

from hamictl.commands.runner import console, run_interruptible, spoken_errors
from hamictl.commands.simulate import policy_of
from hamictl.manifests import apply_pod, read_manifest
from hamictl.scheduler_client import SchedulerAddress, SchedulerClient
from hamictl.settings import Settings
from hamictl.view import cluster_state
from hamictl.view.cluster_state import board

SETTLE_TIMEOUT_S = 60.0
_DEMO_POLL_S = 0.2


def demo_pods(examples: Path) -> list[Json]:
    """Return the pods of the folder's manifests, in the order of file names."""
    return [
        pod
        for path in sorted(examples.glob("*.yaml"))
        for pod in read_manifest(path.read_text(), source=str(path), namespace="default").pods
    ]


async def apply_demo(api: KubeApi, pods: Sequence[Json]) -> None:
    """Create the pods that do not exist."""
    for pod in pods:
        try:
            await api.get(_path(pod))
        except NotFound:
            await apply_pod(api, pod)


async def wait_for_pods(api: KubeApi, pods: Sequence[Json]) -> bool:
    """Wait until each pod runs, has ended, or waits for a known reason.

    Return False on time-out.
    """
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                live = [await api.get(_path(pod)) for pod in pods]
                if all(_has_outcome(pod) for pod in live):
                    return True
                await asyncio.sleep(_DEMO_POLL_S)
    except TimeoutError:
        return False


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _has_outcome(pod: Json) -> bool:
    if not pod["spec"].get("nodeName"):
        return bool(cluster_state.why_waiting(pod))
    return cluster_state.phase(pod) not in ("Pending", "ContainerCreating", "Unknown")


_NODES_TIMEOUT_S = 60.0
_POLL_S = 0.1
_REFRESH_S = 1.0
LEFT_RUNNING = "the system stays up: `hamictl down` stops it"


def up(
    nodes: Annotated[int, typer.Option(help="number of simulated nodes")] = 3,
    gpus: Annotated[int, typer.Option(help="cards per node")] = 4,
    model: Annotated[str, typer.Option(help="product name of the cards")] = "NVIDIA A100-SXM4-80GB",
    memory_mib: Annotated[int, typer.Option(help="memory per card, in MiB")] = 81920,
    own_cards: Annotated[
        bool,
        typer.Option(
            "--own-cards", help="start one node with the NVIDIA cards of this machine instead"
        ),
    ] = False,
    driver_folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="folder of the GPU driver's libraries (default: where the loader finds them)",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="use this API server instead of the emulated one")
    ] = None,
    external_node: Annotated[
        list[str] | None,
        typer.Option(help="name of a node whose agent you start yourself (repeatable)"),
    ] = None,
    kubelet_flag: Annotated[
        list[str] | None, typer.Option(help="flag of the simulated kubelets", hidden=True)
    ] = None,
    node_policy: Annotated[
        Literal["binpack", "spread", "fragmentation"], typer.Option(help="default node policy")
    ] = "binpack",
    gpu_policy: Annotated[
        str,
        typer.Option(help="default card policy: binpack, spread or another of `hamictl simulate`"),
    ] = "",
    score_pods_without_cards: Annotated[
        bool,
        typer.Option(
            "--score-pods-without-cards", help="keep pods without cards off nodes with idle cards"
        ),
    ] = False,
    device_config: Annotated[
        Path | None, typer.Option(help="HAMi's device-config.yaml, for every service")
    ] = None,
    enable_ascend: Annotated[
        bool,
        typer.Option(
            "--enable-ascend",
            help="serve the Ascend chips listed under `vnpus` in device-config.yaml",
        ),
    ] = False,
    enable_iluvatar: Annotated[
        bool,
        typer.Option(
            "--enable-iluvatar",
            help="serve the Iluvatar chips listed under `iluvatars` in device-config.yaml",
        ),
    ] = False,
    binding: Annotated[
        Literal["mixed", "lock", "late"],
        typer.Option(
            help="when a node gives containers their slices: late (at their start, by CDI), lock "
            "(at Allocate, one pod at a time), mixed (every third node lock, the others late)"
        ),
    ] = "mixed",
    most_ends: Annotated[
        int, typer.Option(help="maximum restarts of a process within ten minutes")
    ] = 20,
    fresh: Annotated[bool, typer.Option("--fresh", help="delete the data of earlier runs")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="return when the system is ready")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object, not the live view")
    ] = False,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="start without the demo pods")] = False,
) -> None:
    """Start everything on this machine and show it; Ctrl-C stops it.

    If it runs already, it is shown, and Ctrl-C leaves it running.
    """
    # SIGTERM stops the system as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    layout = Layout(folder=Settings().folder.absolute())
    try:
        options = UpOptions(
            nodes=nodes,
            gpus=gpus,
            model=model,
            memory_mib=memory_mib,
            own_cards=own_cards,
            driver_folder=driver_folder.absolute() if driver_folder else None,
            external_nodes=tuple(external_node or ()),
            kubeconfig=kubeconfig.absolute() if kubeconfig else None,
            kubelet_flags=tuple(kubelet_flag or ()),
            node_policy=node_policy,
            gpu_policy=gpu_policy,
            score_pods_without_cards=score_pods_without_cards,
            device_config=device_config.absolute() if device_config else None,
            enable_ascend=enable_ascend,
            enable_iluvatar=enable_iluvatar,
            binding=binding,
            most_ends=most_ends,
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise typer.BadParameter(first["msg"], param_hint=f"--{option}") from None
    if gpu_policy:
        try:
            policy_of(node_policy, gpu_policy)
        except InvalidRequest as exc:
            raise typer.BadParameter(str(exc)) from None
    began_s = time.monotonic()
    joined = control.is_running(layout)
    quiet = as_json
    with spoken_errors():
        if kubeconfig is not None and not kubeconfig.exists():
            raise InvalidRequest(f"--kubeconfig {kubeconfig} does not exist")
        # A mistake in it is reported here, not in the logs of three services.
        options.vendors()
        if own_cards:
            require_driver(options.driver_folder)
        if fresh:
            control.erase(layout)
        try:
            state = _bring_up(layout, options, quiet=quiet)
            described = control.description(state)
            pods = [] if no_demo else demo_pods(project().examples)
            run_interruptible(_until_useful(layout, options, described, pods, quiet=quiet))
            if as_json:
                console.print_json(data=described)
            else:
                console.print(f"up after {time.monotonic() - began_s:.1f} s, set-up not counted")
            run_interruptible(_watch(layout, described, once=detach, silent=as_json))
        except KeyboardInterrupt:
            console.print(f"\n{LEFT_RUNNING if joined else 'stopping'}", highlight=False)
        except (SupervisorError, InvalidRequest, Unavailable):
            if not joined:
                stop_running(layout.state)
            raise
        if not (detach or joined):
            stop_running(layout.state)


def _bring_up(layout: Layout, options: UpOptions, *, quiet: bool) -> dict[str, Any]:
    """Start the supervisor, or find it running, and wait until all processes are ready."""
    state = read_state(layout.state)
    if control.is_running(layout) and state is not None:
        _echo(quiet, _pages(state))
        _echo(quiet, f"already running in {layout.folder}; the options of this call have no effect")
        if state["phase"] == "ready":
            return state
        pid = state["supervisor"]["pid"]
        starting = False
    else:
        starting = True
        pid = control.start(layout, options)
    announced: set[str] = set()
    ended: set[str] = set()
    for seen in control.progress(layout, pid):
        state = seen
        # A run that was killed may have left its own state until the new one is written.
        if starting and seen["supervisor"]["pid"] == pid:
            starting = False
            _echo(quiet, _pages(seen))
            _echo(quiet, f"starting in {layout.folder} (logs: {layout.logs})")
        for name, entry in seen["services"].items():
            if entry["phase"] == "ready" and name not in announced:
                announced.add(name)
                _echo(quiet, f"  {name} is ready")
            end = "" if starting or name in ended else control.end_of(name, entry)
            if end:
                ended.add(name)
                _echo(quiet, f"  {end}")
    assert state is not None
    return state


def _pages(state: dict[str, Any]) -> str:
    return f"pages: {state['pages_url']} (on this machine only)"


async def _until_useful(
    layout: Layout,
    options: UpOptions,
    described: dict[str, Any],
    pods: list[dict[str, Any]],
    *,
    quiet: bool,
) -> None:
    """Wait for the nodes' cards, then start the demo and wait for its pods; print failures."""
    scheduler = SchedulerClient(SchedulerAddress(url=described["scheduler_url"]))
    async with open_kube_api(Path(described["kubeconfig"])) as api:
        deadline_s = time.monotonic() + _NODES_TIMEOUT_S
        while missing := (
            await control.nodes_without_cards(api, options)
            or await _unregistered_nodes(scheduler, options)
        ):
            if time.monotonic() > deadline_s:
                raise SupervisorError(
                    f"no cards on {', '.join(missing)} after {_NODES_TIMEOUT_S:g} s"
                    f" (logs: {layout.logs})"
                )
            await asyncio.sleep(_POLL_S)
        _echo(
            quiet,
            "  one node with this machine's cards"
            if options.own_cards
            else f"  {options.nodes} nodes with {options.gpus} cards each",
        )
        if pods:
            _echo(quiet, f"applying {len(pods)} pods of {project().examples}")
            await apply_demo(api, pods)
            if not await wait_for_pods(api, pods):
                _echo(quiet, f"some pods are not running after {SETTLE_TIMEOUT_S:g} s")


async def _unregistered_nodes(scheduler: SchedulerClient, options: UpOptions) -> list[str]:
    """Return local nodes whose cards the scheduler does not know, so that pods would be refused."""
    nodes = [node.name for node in options.local_nodes() if node.gpus]
    if not nodes:
        return []
    registered = {row["node"] for row in await scheduler.rows("/v1/devices") if row["present"]}
    return [name for name in nodes if name not in registered]


async def _watch(layout: Layout, described: dict[str, Any], *, once: bool, silent: bool) -> None:
    """Show the state until the system or the user ends it; once if output is no terminal.

    Raises: SupervisorError when it ended unexpectedly.
    """
    scheduler = SchedulerClient(SchedulerAddress(url=described["scheduler_url"]))
    async with open_kube_api(Path(described["kubeconfig"])) as api:
        if not silent:
            console.print(board(await cluster_state.look(api, scheduler), described))
        if once:
            return
        live = not silent and sys.stdout.isatty()
        with (
            Live(console=console, auto_refresh=False, screen=True) if live else nullcontext() as it
        ):
            while control.is_running(layout):
                if it is not None:
                    it.update(board(await cluster_state.look(api, scheduler), described))
                    it.refresh()
                await asyncio.sleep(_REFRESH_S)
    control.check_stopped(layout)
    _echo(silent, "stopped by `hamictl down`")


def down() -> None:
    """Stop the local system; its data stays in its folder."""
    layout = Layout(folder=Settings().folder.absolute())
    with spoken_errors():
        stopped = stop_running(layout.state)
    console.print("stopped" if stopped else f"no system runs in {layout.folder}")


def _echo(quiet: bool, text: str) -> None:
    if not quiet:
        console.print(text, highlight=False)
