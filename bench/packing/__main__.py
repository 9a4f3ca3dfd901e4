"""See the package. Runs take 1 to 8 s of a quiet core each, so each is kept as it ends."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hamictl.commands.replay.command import seeds_of
from hamireplay import runs
from hamireplay.openb import read_trace
from hamireplay.picture import picture
from hamireplay.results import arriving_json
from hamireplay.trace import Trace

from bench.packing import page
from bench.packing.made import Lists, make_list
from bench.packing.results import FIRST, KEPT, LAST, Results, mean, read, write

NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_{}.csv"
ARRIVING = 1.3
"""Demand of all arrivals together, as a multiple of the cards."""
MADE_LIST = "made/"


def main() -> None:
    """Measure the requested runs that are missing; then write the page."""
    args = _arguments()
    results = read(args.kept) if args.kept.exists() else Results()
    for name in args.outputs:
        output = json.loads(Path(name).read_text())
        if "runs" in output:
            results.add(read(Path(name)))
        else:
            results.take(args.name or Path(name).name.partition(".")[0], output)
    write(results, args.kept)
    if args.traces is not None:
        traces = {name: _trace(args.traces, name) for name in args.lists.split(",")}
        for seed in seeds_of(args.seeds):
            for name, trace in traces.items():
                _measure(results, trace, name, seed, args)
    if args.kept == KEPT:
        page.PAGE.write_text(page.with_table(page.PAGE.read_text(), results))
        page.PICTURE.write_text(picture_of(results))


def _trace(folder: Path, name: str) -> Trace:
    nodes, pods = (folder / NODES).read_text(), _pods(folder, name)
    return read_trace(nodes, pods, nodes_file=NODES, pods_file=name)


def _measure(
    results: Results, trace: Trace, name: str, seed: int, args: argparse.Namespace
) -> None:
    for policy in args.policies.split(","):
        if args.again or (name, policy, seed) not in results.runs:
            found = runs.arriving(trace, [policy], [seed], ARRIVING)
            results.take(name, arriving_json(trace, [seed], ARRIVING, found))
        write(results, args.kept)
        print(name, policy, seed, flush=True)


def _pods(folder: Path, name: str) -> str:
    """A list of openb, or `made/NAME`."""
    if not name.startswith(MADE_LIST):
        return (folder / PODS.format(name)).read_text()
    of = (folder / PODS.format(given) for given in ("default", "gpuspec25"))
    return make_list(Lists(*(file.read_text() for file in of)), name.removeprefix(MADE_LIST))


def picture_of(results: Results) -> str:
    """The mean curves of the default trace."""
    curves = {}
    for policy in page.POLICIES:
        by_load = zip(*(run.in_use for run in results.of("default", policy)), strict=True)
        means = [mean(column) for column in by_load]
        curves[policy] = dict(zip(range(FIRST, LAST + 1), means, strict=True))
    return picture(curves)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder with openb's files; runs what is asked")
    parser.add_argument(
        "--lists", default=",".join(page.TRACES), help="pod lists; made/NAME: see made.py"
    )
    parser.add_argument("--policies", default=",".join(page.POLICIES))
    parser.add_argument("--seeds", default="42-51")
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--kept", type=Path, default=KEPT, help="other than the page's results")
    parser.add_argument(
        "--from", dest="outputs", nargs="*", default=[], help="of hamictl replay -o json, or kept"
    )
    parser.add_argument("--name", default="", help="the trace of --from [default: the file's name]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
