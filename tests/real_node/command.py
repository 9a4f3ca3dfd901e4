"""`scripts/real-kubelet`: a real node (and control plane) in the foreground, until Ctrl-C."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hamilocal.supervisor.plan import ServerError

from tests.control_plane import Assets, control_plane, find_assets, node_user
from tests.processes import running
from tests.real_node.node import WORKLOAD_IMAGE, RealNode, real_node, workload_image


def main() -> None:
    """Read the command line, run, clean up."""
    parser = argparse.ArgumentParser(prog="scripts/real-kubelet", description=__doc__)
    parser.add_argument("--assets", type=Path, required=True, help="folder with the binaries")
    parser.add_argument("--node", default="real", help="name of the node (default: real)")
    parser.add_argument("--kubeconfig", type=Path, help="join this cluster (as administrator)")
    parser.add_argument("--native", type=Path, help="built native/ folder, for the workload image")
    parser.add_argument("--image", type=Path, action="append", default=[], help="docker archive")
    parser.add_argument("--scheduler", action="store_true", help="run kube-scheduler, too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _run(arguments)
    except ServerError as exc:
        sys.exit(f"real-kubelet: {exc}")
    except KeyboardInterrupt:
        return


def _run(arguments: argparse.Namespace) -> None:
    assets = find_assets(arguments.assets)
    # Short: the paths of the sockets in it are limited to 107 characters.
    with tempfile.TemporaryDirectory(prefix="hami-node-", dir="/run") as name:
        folder = Path(name)
        workload = workload_image(folder / "workload.tar", native=arguments.native)
        with (
            _cluster(folder, assets, arguments) as (admin, kubeconfig),
            real_node(
                folder / "node",
                binary=assets.folder / "kubelet",
                version=assets.version,
                kubeconfig=kubeconfig,
                name=arguments.node,
                images=[workload, *arguments.image],
            ) as node,
        ):
            _print_node(admin, node)
            signal.pause()


@contextmanager
def _cluster(
    folder: Path, assets: Assets, arguments: argparse.Namespace
) -> Iterator[tuple[Path, Path]]:
    """The administrator's and the kubelet's kubeconfig."""
    if arguments.kubeconfig is not None:
        yield arguments.kubeconfig, arguments.kubeconfig
        return
    user = node_user(arguments.node)
    with control_plane(folder / "control-plane", assets=assets, users=[user]) as plane:
        both = plane.kubeconfig, plane.server.kubeconfigs[user.name]
        if not arguments.scheduler:
            yield both
            return
        with running(plane.scheduler_plan([]), die_with_parent=True):
            yield both


def _print_node(admin: Path, node: RealNode) -> None:
    facts = {
        "kubeconfig": str(admin),
        "node": node.name,
        "image": WORKLOAD_IMAGE,
        "containerd": str(node.socket),
        "kubelet_pid": node.kubelet_pid,
        "kubelet_log": str(node.kubelet_log),
        "device_plugins": str(node.device_plugins),
        "pod_resources": str(node.pod_resources),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
