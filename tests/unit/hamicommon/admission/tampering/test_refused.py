"""Settings that undo a slice are refused wherever in a pod they stand, and nothing else is."""

from copy import deepcopy
from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import TamperingPolicy
from jsonpatch import apply_patch

from tests.unit.hamicommon.admission.tampering.pods import (
    SLICE,
    UNDOING,
    adds,
    env,
    expect_refusal,
    mount,
    pod,
    rules,
)

PARTS = ("containers", "initContainers")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_any_container_of_a_pod_with_a_slice_is_refused_what_undoes_it(
    undoing: dict[str, Any], part: str
) -> None:
    verdict = expect_refusal(pod(part, **undoing))

    assert verdict.reason == "tampering"
    assert verdict.message.startswith("container 'other': ")
    assert "HAMI_ADMISSION_TRUSTED_NAMESPACES" in verdict.message


HARMLESS = [
    env("CUDA_DISABLE_CONTROL", "false"),
    env("CUDA_DISABLE_CONTROL", ""),
    env("GPU_CORE_UTILIZATION_POLICY", "force"),
    env("GPU_CORE_UTILIZATION_POLICY", "default"),
    env("CUDA_OVERSUBSCRIBE", "false"),
    env("NVIDIA_VISIBLE_DEVICES", "none"),
    env("NVIDIA_VISIBLE_DEVICES", "void"),
    env("NVIDIA_VISIBLE_DEVICES", ""),
    env("NVIDIA_DRIVER_CAPABILITIES", "all"),
    env("CUDA_VISIBLE_DEVICES", "0"),
    env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
    env("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/libcuda"),
    env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 libtcmalloc.so"),
    env("LD_PRELOAD", "/usr/local/vgpu/libvgpu.so"),
    env("LD_AUDIT", ""),
    env("LIBCUDA_LOG_LEVEL", "4"),
    env("CUDA_TASK_PRIORITY", "1"),
    env("MY_CUDA_DISABLE_CONTROL", "true"),
    {"envFrom": [{"configMapRef": {"name": "settings"}}]},
    mount("/dev/shm"),
    mount("/etc/ssl/certs"),
    mount("/etc/hamilton"),
    mount("/etc/ld.so.conf.d"),
    mount("/usr/local/nvidia"),
    mount("/tmp"),
    mount("/var/run"),
    mount("/var/run/secrets/kubernetes.io/serviceaccount"),
    adds("SYS_PTRACE", "IPC_LOCK", "SYS_NICE", "NET_ADMIN"),
    {"securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}}},
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("harmless", HARMLESS, ids=str)
def test_what_undoes_nothing_changes_nothing(harmless: dict[str, Any], part: str) -> None:
    bare = pod(part, command=["x"])
    verdict = mutate(pod(part, **harmless), rules())

    assert verdict.allowed, verdict.message
    assert verdict.patch == mutate(bare, rules()).patch
    assert verdict.audit.keys() == {"quotas", "cards"}


def host_volume(path: str) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", "hostPath": {"path": path}}]}}


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/usr", "/usr/local/", "/usr/local/vgpu", "/usr/local/vgpu/containers/x", "//usr"),
        *("/var/lib/kubelet/device-plugins", "/var/lib/hami", "/var/run/cdi", "/run", "/etc/cdi"),
        *("/proc", "/proc/1/root", "/run/containerd/containerd.sock", "/var/run/docker.sock"),
    ],
)
def test_folders_of_the_node_from_where_limits_are_reached_are_no_mounts(path: str) -> None:
    given_ = pod(**host_volume(path), **mount("/data"))

    verdict = expect_refusal(given_)

    assert path in verdict.message
    assert "mount at /data shows" in verdict.message


@pytest.mark.parametrize("path", ["/data", "/usr/local/cuda", "/mnt/models", "/var/log", "/tmp"])
def test_other_folders_of_the_node_are_not_our_business(path: str) -> None:
    assert mutate(pod(**host_volume(path), **mount("/data")), rules()).allowed


def test_a_folder_of_the_node_that_nobody_mounts_is_let_be() -> None:
    assert mutate(pod(**host_volume("/"), command=["x"]), rules()).allowed


def test_the_processes_of_others_are_out_of_reach() -> None:
    verdict = expect_refusal(pod(spec={"hostPID": True}))

    assert verdict.message.startswith("hostPID is true: it reaches other pods' processes")
    assert mutate(pod(spec={"hostPID": False, "hostIPC": True}), rules()).allowed


@pytest.mark.parametrize(("variables", "counted"), [(200, "197"), (2000, "at least 254")])
def test_of_many_findings_three_are_named_and_the_others_counted(
    variables: int, counted: str
) -> None:
    many = [
        {"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "x" * 5000} for n in range(variables)
    ]

    message = expect_refusal(pod(env=many)).message

    assert f"; and {counted} more (an operator permits it" in message
    assert len(message) < 1024


@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_a_pod_without_a_card_may_do_what_shows_it_none(undoing: dict[str, Any]) -> None:
    shows = "nvidia-container-devices" in str(undoing) or "NVIDIA_VISIBLE" in str(undoing)

    verdict = mutate(pod(limits={}, **undoing), rules())

    assert verdict.allowed is not shows
    assert verdict.patch == []


def test_a_privileged_pod_without_a_card_is_let_be() -> None:
    """Such a pod has every device of its node, whatever its variables are."""
    showing = env("NVIDIA_VISIBLE_DEVICES", "all")
    given_ = pod(limits={}, securityContext={"privileged": True}, **showing)

    assert mutate(given_, rules()).allowed


@pytest.mark.parametrize("scheduler", ["mine", "default-scheduler", ""])
def test_no_scheduler_name_is_a_way_out(scheduler: str) -> None:
    for limits in (SLICE, {}):
        given_ = pod(
            limits=limits,
            spec={"schedulerName": scheduler, "nodeName": ""},
            **env("NVIDIA_VISIBLE_DEVICES", "all"),
        )
        assert expect_refusal(given_).reason == "tampering"


def test_a_pod_of_another_scheduler_is_shown_no_cards_where_that_is_wanted() -> None:
    given_ = pod(limits={}, spec={"schedulerName": "mine"}, **env("NVIDIA_VISIBLE_DEVICES", "all"))
    verdict = mutate(given_, rules(overwrite_env=True))

    assert (verdict.allowed, verdict.reason) == (True, "other-scheduler")
    after = apply_patch(deepcopy(given_), verdict.patch)
    hidden = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert [each["env"] for each in after["spec"]["containers"]] == [hidden, hidden]
    assert after["spec"]["schedulerName"] == "mine"
    assert mutate(after, rules(overwrite_env=True)).patch == []


def test_the_second_entry_of_a_variable_does_not_undo_what_admission_writes() -> None:
    """The last of several entries with one name counts."""
    twice = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}] * 3}
    given_ = pod(limits={}, **twice)

    verdict = mutate(given_, rules(overwrite_env=True))

    after = apply_patch(deepcopy(given_), verdict.patch)
    hidden = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert after["spec"]["containers"][1]["env"] == hidden


def test_the_installations_own_policy_is_not_tampering() -> None:
    switched_off = pod(**env("GPU_CORE_UTILIZATION_POLICY", "disable"))

    for policy in ("disable", "force"):
        verdict = mutate(switched_off, rules(gpu_core_policy=policy))
        assert verdict.allowed
        after = apply_patch(deepcopy(switched_off), verdict.patch)
        assert after["spec"]["containers"][1]["env"][0]["value"] == policy


# --- stripping of tampering: a pod passes without it, and with everything else


STRIPPING = TamperingPolicy(mode="strip")


@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_where_it_is_stripped_the_pod_passes_without_it(undoing: dict[str, Any]) -> None:
    given_ = pod("initContainers", **undoing)
    untouched = deepcopy(given_)

    verdict = mutate(given_, rules(STRIPPING))

    assert verdict.allowed
    assert given_ == untouched
    assert verdict.warnings[0].startswith("removed: container 'other': ")
    assert verdict.audit["tampering"].startswith("stripped: ")
    after = apply_patch(deepcopy(given_), verdict.patch)
    again = mutate(after, rules())
    assert (again.allowed, again.patch) == (True, [])
    # Nothing else has changed.
    assert after["spec"]["containers"][0] == given_["spec"]["containers"][0]
    assert after["spec"]["initContainers"][0]["name"] == "other"


def test_what_is_stripped_leaves_the_rest_of_its_list() -> None:
    kept = [{"name": "A", "value": "b"}, {"name": "LD_PRELOAD", "value": "libjemalloc.so"}]
    mounts = [{"name": "w", "mountPath": "/data"}, {"name": "v", "mountPath": "/etc"}]
    given_ = pod(
        env=[kept[0], *env("LD_AUDIT", "x")["env"], kept[1]],
        volumeMounts=mounts,
        spec={"hostPID": True},
        **adds("SYS_ADMIN", "IPC_LOCK"),
    )

    after = apply_patch(deepcopy(given_), mutate(given_, rules(STRIPPING)).patch)

    other = after["spec"]["containers"][1]
    assert other["env"] == kept
    assert other["volumeMounts"] == mounts[:1]
    assert other["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "hostPID" not in after["spec"]


def test_a_container_without_a_card_is_shown_none_and_one_with_cards_its_own() -> None:
    """An image may have the variable itself: to remove ours would show that one's cards."""
    limits = {"limits": SLICE}
    given_ = pod(**env("NVIDIA_VISIBLE_DEVICES", "all"))
    given_["spec"]["containers"][0] |= env("NVIDIA_VISIBLE_DEVICES", "all") | {"resources": limits}

    after = apply_patch(deepcopy(given_), mutate(given_, rules(STRIPPING)).patch)

    main, other = after["spec"]["containers"]
    assert "env" not in main
    assert other["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_a_priority_is_stripped_to_everybodys() -> None:
    given_ = pod(limits={**SLICE, "nvidia.com/priority": 0})

    verdict = mutate(given_, rules(STRIPPING))

    after = apply_patch(deepcopy(given_), verdict.patch)
    assert after["spec"]["containers"][0]["env"] == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]
    assert mutate(after, rules(STRIPPING)).patch == []


def test_a_pod_with_more_findings_than_are_looked_for_is_refused_in_place_of_stripped() -> None:
    many = [{"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "1g"} for n in range(300)]

    verdict = mutate(pod(env=many), rules(STRIPPING))

    assert (verdict.allowed, verdict.reason) == (False, "tampering")
    assert "; and at least 254 more" in verdict.message
