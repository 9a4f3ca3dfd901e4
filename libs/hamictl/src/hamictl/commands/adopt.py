"""`hamictl adopt`: the running pods of a HAMi 2.x into the ledger (docs/adoption.md)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hamictl.commands.objects import Output
from hamictl.commands.runner import console, run
from hamictl.scheduler_client import SchedulerClient
from hamictl.settings import Settings
from hamictl.target import find_target
from hamictl.view.adoption import adoption

# A thousand nodes are asked sixteen at a time, each for at most 5 s; most answer in milliseconds.
TIMEOUT_S = 330.0


def adopt(
    apply: Annotated[
        bool, typer.Option("--apply", help="write it; else only print what would be adopted")
    ] = False,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="only this node (may be repeated)")
    ] = None,
    believe_node: Annotated[
        bool,
        typer.Option(
            "--believe-node",
            help="where a pod's annotation and its node differ, adopt what the node reports",
        ),
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Take over the pods that HAMi started; nothing is restarted, and it may be repeated.

    Ends with status 1 when a pod is refused.
    """
    answer = run(_adopt({"apply": apply, "nodes": node or [], "believe_node": believe_node}))
    if output is Output.JSON:
        console.print_json(data=answer)
    else:
        for part in adoption(answer):
            # Names and texts come from the cluster: nothing in them is markup.
            console.print(part, highlight=False, markup=False)
    if any(row["outcome"] == "refused" for row in answer["pods"]):
        raise typer.Exit(1)


async def _adopt(body: dict[str, Any]) -> Any:
    target = find_target(Settings())
    scheduler = SchedulerClient(target.need_scheduler())
    return await scheduler.post("/v1/adopt", body, timeout_s=TIMEOUT_S)
