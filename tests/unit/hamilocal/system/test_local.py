"""Files of a local system: credentials, ports, paths, nodes."""

import socket
import ssl
import threading
from pathlib import Path

import pytest
from hamilocal.supervisor.ports import stable_ports
from hamilocal.system.control import end_of
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.layout import Layout, ensure_credentials
from hamilocal.system.options import UpOptions, fakegpu_config, simulated_nodes
from hamilocal.system.system import knows_match_conditions


def test_credentials_are_made_once_and_kept(tmp_path: Path) -> None:
    first = ensure_credentials(tmp_path, serving=("apiserver",))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    secret = first.secret("postgres")

    again = ensure_credentials(tmp_path, serving=("apiserver",))

    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert again.secret("postgres") == secret


def test_private_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    made = ensure_credentials(tmp_path, serving=("apiserver",))
    made.secret("x")

    for name in ("ca.key", "apiserver.key", "grant.key", "tokens.csv", "x.secret"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name


def test_the_certificate_serves_loopback_under_strict_verification(tmp_path: Path) -> None:
    made = ensure_credentials(tmp_path, serving=("webhook",))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made.certificate("webhook"), made.key("webhook"))
    trusting = ssl.create_default_context(cafile=str(made.ca))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with serving.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.recv(5) == b"hello"
        thread.join()


def test_ports_stay_the_same_while_they_are_free(tmp_path: Path) -> None:
    first = stable_ports(("a", "b"), tmp_path / "ports.json")

    assert stable_ports(("a", "b", "c"), tmp_path / "ports.json").items() >= first.items()
    assert len(set(first.values())) == 2


def test_a_port_that_somebody_took_is_replaced(tmp_path: Path) -> None:
    taken = stable_ports(("a",), tmp_path / "ports.json")["a"]
    with socket.create_server(("127.0.0.1", taken)):
        assert stable_ports(("a",), tmp_path / "ports.json")["a"] != taken


def test_socket_paths_stay_short_in_a_deep_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ".hami"
    deep.mkdir(parents=True)
    node = Layout(folder=deep).node("node-0")
    node.mkdir(parents=True)
    path = node / "s"

    assert len(str(node / "kubelet/device-plugins/nvidia-gpu.sock")) < 108
    assert path.resolve().parent == (deep / "nodes" / "node-0").resolve()


def test_every_simulated_card_has_a_uuid_of_its_own_that_never_changes() -> None:
    nodes = simulated_nodes(count=3, gpus=4, model="NVIDIA H100 80GB HBM3", memory_mib=81559)

    def uuids(system: str) -> list[str]:
        return [
            device["uuid"]
            for node in nodes
            for device in fakegpu_config(node, system=system, state="s")["devices"]
        ]

    assert len(set(uuids("a"))) == 12
    assert uuids("a") == uuids("a")
    assert not set(uuids("a")) & set(uuids("b"))


def test_kube_scheduler_leaves_our_resources_to_the_extender() -> None:
    configuration = scheduler_configuration(
        kubeconfig_path="k",
        extender_url="http://127.0.0.1:1",
        scheduler_name="hami-scheduler",
        resources=("nvidia.com/gpu", "amd.com/gpu"),
    )

    [extender] = configuration["extenders"]
    assert extender["nodeCacheCapable"] is True
    assert [entry["name"] for entry in extender["managedResources"]] == [
        "nvidia.com/gpu",
        "amd.com/gpu",
        "hami.io/slice",
    ]
    assert all(entry["ignoredByScheduler"] for entry in extender["managedResources"])


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ({"major": "1", "minor": "20"}, False),
        ({"major": "1", "minor": "27+"}, False),
        ({"major": "1", "minor": "28"}, True),
        ({"major": "1", "minor": "36"}, True),
        ({}, False),
    ],
)
def test_match_conditions_are_used_from_1_28_on(version: dict[str, str], known: bool) -> None:
    assert knows_match_conditions(version) is known


def test_with_its_own_cards_this_machine_is_the_one_node() -> None:
    simulated = UpOptions(nodes=2).local_nodes()
    own = UpOptions(nodes=2, own_cards=True).local_nodes()

    assert [(node.name, node.own_cards) for node in simulated] == [
        ("node-0", False),
        ("node-1", False),
    ]
    assert [(node.name, node.own_cards) for node in own] == [("node-0", True)]


def test_a_child_that_ended_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "scheduler.log"
    log.write_text("hami-scheduler: starting\nhami-scheduler: the settings are not usable\n")

    assert end_of("scheduler", {"restarts": 0, "log": str(log)}) == ""
    assert end_of("scheduler", {"restarts": 2, "log": str(log)}) == (
        "scheduler ended and is started again; its log ends with: "
        "hami-scheduler: the settings are not usable"
    )
