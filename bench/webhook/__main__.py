"""Reviews per second of the webhook, beside a bare endpoint of the same server in the same run.

The console script `hami-webhook` runs over TLS with audit lines and traces on; beside it the bare
endpoint (bare_endpoint.py), which reads the same body and answers two bytes. Rounds of the same
requests take turns between both, half a second each, so that both see the same machine in the
same mood; the median of the rounds' ratios is what counts. The reviews are of 64 workloads, replica
after replica; rounds in which no two pods are alike show what a pod costs that nothing was
remembered of. CPU time per answer is printed too: the client has a share in all rates, which makes
their ratio look better. Then the certificate is rotated every second under load, half of it on new
connections: no request may fail. Writes bench/results/webhook.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import ssl
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from hamilocal.servers.certificates import Authority, write_certificate

from bench.webhook.load import Load, rotated, round_of, until_ready
from bench.webhook.reviews import bare, replica, unseen
from bench.webhook.servers import bare_endpoint, webhook

RESULTS = Path(__file__).parents[1] / "results" / "webhook.json"
GOAL = 0.3
ROUNDS = 30


def write_pair(authority: Authority, folder: Path) -> None:
    """A new certificate with its key, in place of the old ones."""
    authority.make_serving(
        "webhook", certificate_file=folder / "tls.crt", key_file=folder / "tls.key"
    )


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs everything."""
    authority = Authority.new("bench")
    write_pair(authority, folder)
    write_certificate(folder / "ca.pem", authority.certificate)
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with webhook(folder) as server, bare_endpoint(folder) as other:
        for each, request in ((server, replica), (other, bare)):
            await until_ready(each.port, request(), trust)
            await round_of(1.0, request, each, trust, args.connections)
        kinds = {"bare": (bare, other), "review": (replica, server), "unseen": (unseen, server)}
        rounds: dict[str, list[Load]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, (request, each) in kinds.items():
                load = await round_of(args.seconds, request, each, trust, args.connections)
                rounds[kind].append(load)
        under, rotations = await rotated(
            args.rotate_seconds,
            server.port,
            trust,
            args.connections,
            rotate=partial(write_pair, authority, folder),
        )
    # Written by the process, which has ended: every review has its audit line and its span.
    audit_lines = (folder / "audit.log").read_text().count('"hami_webhook.audit"')
    spans = (folder / "traces.jsonl").read_text().count('"admission"')
    return {
        **figures(rounds),
        "goal": GOAL,
        "audit_lines": audit_lines,
        "spans": spans,
        "rotation": {
            "seconds": args.rotate_seconds,
            "rotations": rotations,
            "answers": len(under.latencies_s),
            "failures": len(under.failures),
            "first_failures": under.failures[:5],
            "p99_ms": round(under.quantile_ms(0.99), 2),
        },
    }


def figures(rounds: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    """Return the figures that the rounds of each kind show."""
    reviews, unseens, bares = rounds["review"], rounds["unseen"], rounds["bare"]
    failures = [text for kind in rounds.values() for load in kind for text in load.failures]
    return {
        "reviews_per_second": round(median(reviews, Load.rate), 1),
        "unseen_per_second": round(median(unseens, Load.rate), 1),
        "bare_per_second": round(median(bares, Load.rate), 1),
        "ratio": round(ratio(reviews, bares), 3),
        "unseen_ratio": round(ratio(unseens, bares), 3),
        **{f"{kind}_cpu_us": round(median(each, Load.cpu_us)) for kind, each in rounds.items()},
        "p50_ms": round(median(reviews, partial(Load.quantile_ms, share=0.5)), 2),
        "p99_ms": round(median(reviews, partial(Load.quantile_ms, share=0.99)), 2),
        "failures": failures[:5],
        "answered": sum(len(load.latencies_s) for load in (*reviews, *unseens)),
    }


def median(loads: Sequence[Load], figure: Callable[[Load], float]) -> float:
    """Return the median of one figure of each round."""
    return statistics.median(map(figure, loads))


def ratio(loads: Sequence[Load], bares: Sequence[Load]) -> float:
    """Return the median ratio of the rates of rounds that came one after the other."""
    pairs = zip(loads, bares, strict=True)
    return statistics.median(load.rate() / bare.rate() for load, bare in pairs)


def main() -> None:
    """Measures, prints and writes the results; fails when a request failed."""
    parser = argparse.ArgumentParser(prog="make bench-webhook", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rotate-seconds", type=float, default=30.0, help="0: no rotation")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measure(args, Path(folder)))
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    rotation = found["rotation"]
    print(
        f"reviews {found['reviews_per_second']}/s, bare endpoint {found['bare_per_second']}/s, "
        f"ratio {found['ratio']} (goal {GOAL}); no two alike {found['unseen_per_second']}/s, "
        f"ratio {found['unseen_ratio']}; CPU of the server {found['review_cpu_us']} us, "
        f"{found['unseen_cpu_us']} us and bare {found['bare_cpu_us']} us; "
        f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms"
    )
    print(
        f"rotation: {rotation['rotations']} certificates in {rotation['seconds']:g} s, "
        f"{rotation['answers']} answers, {rotation['failures']} failures, "
        f"p99 {rotation['p99_ms']} ms"
    )
    if found["failures"] or rotation["failures"]:
        sys.exit(f"requests failed: {found['failures'] + rotation['first_failures']}")


if __name__ == "__main__":
    main()
