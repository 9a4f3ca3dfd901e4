"""`/pods/{ns}/{name}`, `/pods/uid/{uid}`, `/pending`: one pod's story, and those that wait."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter, Request, Response
from hamicommon.domain.ids import NodeName
from hamicommon.errors import NotFound
from hamicommon.ledger.questions import answer

from hami_metrics.pages.domain.cluster import silent
from hami_metrics.pages.reading.last_hour import read_last_hour
from hami_metrics.pages.reading.pods import find_pods, read_pod
from hami_metrics.pages.views.pending import pending_page
from hami_metrics.pages.views.pod import pod_page
from hami_metrics.pages.web.site import LONGEST_KEY, Asked, Site, text_of

PAGE_ROWS = 100


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()

    @router.get("/pods/uid/{uid}")
    async def by_uid(uid: str, request: Request) -> Response:
        return await _pod(site, await site.asked(request), request, uid, "")

    @router.get("/pods/{namespace}/{name}")
    async def by_name(namespace: str, name: str, request: Request) -> Response:
        asked = await site.again(await site.asked(request), request, [namespace])
        what = f"{namespace}/{name}"
        # As for a pod that is none, so that nobody learns which pods there are.
        if not asked.viewer.sees(namespace):
            raise _unknown(what)
        async with site.ledger.look() as connection:
            found = await find_pods(connection, namespace, name, asked.moment.shown)
        if not found:
            raise _unknown(what)
        return await _pod(site, asked, request, found[0][0], what)

    @router.get("/pending")
    async def pending(request: Request) -> Response:
        asked = await site.asked(request)
        reason = text_of(request, "reason")
        namespace = text_of(request, "ns")
        after = text_of(request, "after", LONGEST_KEY)
        parameters: dict[str, object] = {"at": asked.moment.shown}
        chosen = {"reason": reason or None, "namespace": namespace or None}
        async with site.ledger.connection() as connection:
            reasons = await answer(connection, "pending-reasons", parameters)
            waiting = await answer(
                connection,
                "waiting-pods",
                parameters | chosen,
                limit=PAGE_ROWS,
                after=site.seal.open(after) if after else None,
            )
        names = {str(row["namespace"]) for row in waiting.rows}
        asked = await site.again(asked, request, names)
        page = pending_page(
            reasons.rows, waiting.rows, asked.viewer, reason, asked.state, asked.moment.shown
        )
        more = None if waiting.next is None else site.seal.close(waiting.next)
        return site.answer(
            asked,
            "pending.html",
            page=page,
            namespace=namespace,
            more=more,
            here="pending",
            subject="",
        )

    return router


async def _pod(site: Site, asked: Asked, request: Request, uid: str, what: str) -> Response:
    async with site.ledger.look() as connection:
        pod = await read_pod(connection, uid, asked.moment.shown, silent=_silent(asked))
        hour = await read_last_hour(connection, asked.moment.shown)
    if pod is None:
        raise _unknown(what or f"with uid {uid}")
    asked = await site.again(asked, request, [pod.namespace])
    if not asked.viewer.sees(pod.namespace):
        raise _unknown(what or f"with uid {uid}")
    # The newest decision's spans: of the past another one may have been the newest.
    drawn = None if asked.moment.past else await site.traces.of_pod(uid)
    page = pod_page(
        *(pod, asked.moment.shown),
        hour=hour,
        drawn=drawn,
        trace_url=site.trace_url,
        state=asked.state,
    )
    node = page.current.node if page.current else ""
    return site.answer(asked, "pod.html", page=page, here="pods", subject=node)


def _silent(asked: Asked) -> Collection[NodeName] | None:
    """Nodes whose agents are silent now; None at a moment of the past."""
    if asked.moment.past:
        return None
    nodes = {} if asked.state is None else asked.state.nodes
    return {NodeName(name) for name, node in nodes.items() if silent(node, asked.moment.shown)}


def _unknown(what: str) -> NotFound:
    return NotFound(f"the ledger knows no pod {what[:300]}, or not one that you may see")
