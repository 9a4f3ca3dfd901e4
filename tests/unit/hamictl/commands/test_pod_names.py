"""Names of pods for a shell: one request in five seconds, and no names without an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest, NotFound
from hamictl.commands import pod_names as completion
from hamictl.commands.answers import KINDS, label_selector, owner_of, pods_of_owner
from hamictl.commands.named import chosen
from hamictl.scheduler_client import SchedulerAddress, metrics_address
from hamictl.target import Installation

from tests.contract.kubernetes.servers import start_emulation

PODS = (("default", "shown"), ("default", "shy"), ("team-a", "train"))


class Scheduler(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        Scheduler.asked += 1
        items = [{"namespace": space, "pod_name": name} for space, name in PODS]
        body = json.dumps({"items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Scheduler.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Scheduler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HAMI_SCHEDULER_URL", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("scheduler")
def test_names_begin_as_typed_and_are_asked_for_once() -> None:
    assert completion.pod_names("sh") == ["shown", "shy"]
    assert completion.pod_names("pod/sho") == ["pod/shown"]
    assert completion.pod_names("team-a/") == ["team-a/train"]
    assert completion.kinds_and_pods("po") == ["pod"]
    assert completion.kinds_and_pods("pod/t") == ["pod/team-a/train"]
    assert Scheduler.asked == 1


@pytest.mark.usefixtures("scheduler")
def test_what_is_kept_is_asked_for_again_after_five_seconds_and_where_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    completion.pod_names("")
    [kept] = (tmp_path / "cache" / "hamictl").iterdir()
    kept.write_text("{")
    assert len(completion.pod_names("")) == len(PODS)
    monkeypatch.setattr(completion, "KEPT_S", 0.0)
    assert len(completion.pod_names("")) == len(PODS)

    assert Scheduler.asked == 3
    assert kept.stat().st_mode & 0o077 == 0


def test_where_nobody_answers_nothing_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completion.pod_names("") == []
    monkeypatch.setenv("HAMI_SCHEDULER_URL", "http://127.0.0.1:1")
    assert completion.pod_names("") == []


# --- a card is named by its uuid, by the beginning of one, or by its node and index


CARDS = [
    {"device_uuid": "GPU-4698e9ba-1", "card_index": 0},
    {"device_uuid": "GPU-4698ffff-2", "card_index": 1},
    {"device_uuid": "GPU-116ecea7-3", "card_index": 2},
]


@pytest.mark.parametrize(
    ("name", "index", "uuid"),
    [
        ("GPU-116ecea7-3", "", "GPU-116ecea7-3"),
        ("GPU-116", "", "GPU-116ecea7-3"),
        ("gpu-4698E9", "", "GPU-4698e9ba-1"),
        ("n1/1", "1", "GPU-4698ffff-2"),
    ],
)
def test_one_card_has_the_name(name: str, index: str, uuid: str) -> None:
    assert chosen(CARDS, name, index) == uuid


def test_a_whole_name_is_one_card_where_another_begins_so() -> None:
    cards = [{"device_uuid": f"{n}@worker-1{more}", "card_index": 0} for n in "01" for more in "01"]
    named = [*cards, {"device_uuid": "0@worker-1", "card_index": 0}]
    assert chosen(named, "0@worker-1", "") == "0@worker-1"


def test_several_that_begin_alike_are_named() -> None:
    with pytest.raises(InvalidRequest, match="GPU-4698 matches 2 cards, such as GPU-4698e9ba-1"):
        chosen(CARDS, "GPU-4698", "")


@pytest.mark.parametrize(("name", "index"), [("GPU-9", ""), ("GPU", "")])
def test_a_name_that_none_has_is_not_found(name: str, index: str) -> None:
    with pytest.raises(NotFound, match="hamictl get devices"):
        chosen(CARDS, name, index)


@pytest.mark.parametrize(
    ("cards", "named"),
    [(CARDS, "cards 0 to 2"), (CARDS[:1], "card 0 only"), (CARDS[::2], "cards 0, 2")],
)
def test_of_an_index_that_a_node_lacks_those_it_has_are_named(
    cards: list[dict[str, object]], named: str
) -> None:
    with pytest.raises(NotFound, match=f"card n1/7 not found: n1 has {named}$"):
        chosen(cards, "n1/7", "7")


# --- `explain deploy/NAME`: the pods of a workload, of each kind


CONTAINER = {"name": "c", "image": "x"}


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        ("deploy/train", ("deploy", "train")),
        ("Deployment/train", ("Deployment", "train")),
        ("cj/nightly", ("cj", "nightly")),
        ("train", None),
        ("pod/train", None),
        ("team-a/train", None),
        ("deploy/", None),
    ],
)
def test_a_workload_is_named_by_its_kind_as_kubectl_has_it(
    given: str, owner: tuple[str, str] | None
) -> None:
    assert owner_of(given) == owner


def test_a_replication_controllers_selector_is_its_labels() -> None:
    assert label_selector({"spec": {"selector": {"app": "a", "tier": "b"}}}) == "app=a,tier=b"


def installation(kubeconfig: Path) -> Installation:
    address = "http://127.0.0.1:1"
    return Installation(
        kubeconfig=kubeconfig,
        scheduler=SchedulerAddress(url=address),
        postgres_dsn="",
        local=True,
        metrics=metrics_address(address),
    )


@pytest.mark.integration
async def test_the_pods_that_its_selector_takes_are_listed(tmp_path: Path) -> None:
    with start_emulation(tmp_path) as cluster:
        labels = {"app": "train"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        cluster.ok(
            cluster.client.post(
                "/apis/apps/v1/namespaces/default/deployments",
                json={"metadata": {"name": "train"}, "spec": spec},
            )
        )
        target = installation(cluster.kubeconfig)
        with pytest.raises(NotFound, match="Deployment default/train has no pod"):
            await pods_of_owner(target, "deploy", "train", "default")
        for name, own in (("train-1", labels), ("other", {"app": "other"})):
            pod = {"metadata": {"name": name, "labels": own}, "spec": {"containers": [CONTAINER]}}
            cluster.ok(cluster.client.post(cluster.path("pods"), json=pod))

        found = await pods_of_owner(target, "deploy", "train", "default")
        with pytest.raises(NotFound, match="Deployment default/nobody does not exist"):
            await pods_of_owner(target, "deploy", "nobody", "default")

    assert [row["pod_name"] for row in found.rows] == ["train-1"]


def test_every_kind_with_pods_is_known() -> None:
    kinds = {title for title, _, _ in KINDS.values()}

    assert kinds == {
        *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"),
        "ReplicationController",
    }
