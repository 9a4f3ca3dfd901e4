"""What undoes a slice is refused at admission, wherever in a pod it stands, and nothing else is."""

from copy import deepcopy
from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.tampering.policy import NamespacePermits, TamperingPolicy
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult, AdmissionRules
from hamicommon.device_config import DeviceConfig, NvidiaConfig, load
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from tests.unit.webhook.test_any_review import pods

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
SLICE = {GPU: 1, MEM: 4096}
PARTS = ("containers", "initContainers")
VENDORS = Vendors.from_config(load(None), enable_ascend=True, enable_iluvatar=True)


def rules(policy: TamperingPolicy | None = None, **nvidia: Any) -> AdmissionRules:
    config = DeviceConfig(nvidia=NvidiaConfig(**nvidia))
    return AdmissionRules(
        vendors=Vendors.from_config(config),
        scheduler_name="hami-scheduler",
        tampering=policy or TamperingPolicy(),
    )


def pod(part: str = "containers", *, limits: Any = SLICE, spec: Any = None, **more: Any) -> Any:
    """A pod with a slice whose other container has `more`."""
    found: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"limits": limits}}],
        **(spec or {}),
    }
    if more:
        found[part] = [*found.get(part, ()), {"name": "other", **more}]
    return {"metadata": {"name": "p", "namespace": "team"}, "spec": found}


def env(name: str, value: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}]}


def mount(path: str, volume: str = "v") -> dict[str, Any]:
    return {"volumeMounts": [{"name": volume, "mountPath": path}]}


def adds(*capabilities: str) -> dict[str, Any]:
    return {"securityContext": {"capabilities": {"add": list(capabilities)}}}


def refused(given_: Any, installed: AdmissionRules | None = None) -> AdmissionResult:
    verdict = mutate(given_, installed or rules())
    assert not verdict.allowed
    assert verdict.code == 403
    assert verdict.patch == []
    assert verdict.message.isprintable()
    return verdict


UNDOING = [
    env("CUDA_DISABLE_CONTROL", "true"),
    env("CUDA_DISABLE_CONTROL", "1"),
    env("CUDA_DEVICE_MEMORY_LIMIT", "70g"),
    env("CUDA_DEVICE_MEMORY_LIMIT_0", "70g"),
    env("CUDA_DEVICE_MEMORY_LIMIT_63", "1"),
    env("CUDA_DEVICE_SM_LIMIT", "100"),
    env("CUDA_DEVICE_SM_LIMIT_1", "100"),
    env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine"),
    env("CUDA_OVERSUBSCRIBE", "true"),
    env("GPU_CORE_UTILIZATION_POLICY", "disable"),
    env("GPU_CORE_UTILIZATION_POLICY", "DISABLE"),
    env("NVIDIA_VISIBLE_DEVICES", "all"),
    env("NVIDIA_VISIBLE_DEVICES", "0"),
    env("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
    env("NVIDIA_VISIBLE_DEVICES", "$(OTHER)"),
    env("LD_AUDIT", "/tmp/hide.so"),
    env("LD_PRELOAD", "/usr/lib/libjemalloc.so:/tmp/x/libcuda.so.1"),
    env("LD_PRELOAD", "libnvidia-ml.so.1"),
    {"env": [{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"configMapKeyRef": {}}}]},
    {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "$(OTHER)"}]},
    {"env": [{"name": "A", "value": "b"}, {"name": "CUDA_DISABLE_CONTROL", "value": "t"}]},
    mount("/etc/ld.so.preload"),
    mount("/etc/../etc/ld.so.preload"),
    mount("/etc/ld.so.preload/"),
    mount("//etc/ld.so.preload"),
    mount("etc/ld.so.preload"),
    mount("/etc/hami"),
    mount("/etc/hami/limits"),
    mount("/etc"),
    mount("/"),
    mount("/usr/local/vgpu"),
    mount("/usr/local/vgpu/libvgpu.so"),
    mount("/usr/local"),
    mount("/var/run/nvidia-container-devices/all"),
    mount("/run/nvidia-container-devices/GPU-1"),
    {"volumeDevices": [{"name": "v", "devicePath": "/etc/hami/limits"}]},
    adds("SYS_ADMIN"),
    adds("NET_ADMIN", "cap_sys_admin"),
    adds("ALL"),
    adds("SYS_MODULE"),
    adds("DAC_READ_SEARCH"),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_any_container_of_a_pod_with_a_slice_is_refused_what_undoes_it(
    undoing: dict[str, Any], part: str
) -> None:
    verdict = refused(pod(part, **undoing))

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

    verdict = refused(given_)

    assert path in verdict.message
    assert "mount at /data shows" in verdict.message


@pytest.mark.parametrize("path", ["/data", "/usr/local/cuda", "/mnt/models", "/var/log", "/tmp"])
def test_other_folders_of_the_node_are_not_our_business(path: str) -> None:
    assert mutate(pod(**host_volume(path), **mount("/data")), rules()).allowed


def test_a_folder_of_the_node_that_nobody_mounts_is_let_be() -> None:
    assert mutate(pod(**host_volume("/"), command=["x"]), rules()).allowed


def test_the_processes_of_others_are_out_of_reach() -> None:
    verdict = refused(pod(spec={"hostPID": True}))

    assert verdict.message.startswith("hostPID is true: it reaches other pods' processes")
    assert mutate(pod(spec={"hostPID": False, "hostIPC": True}), rules()).allowed


def test_of_many_findings_three_are_named_and_the_others_counted() -> None:
    many = [{"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "x" * 5000} for n in range(2000)]

    message = refused(pod(env=many)).message

    assert "; and 1997 more (an operator permits it" in message
    assert len(message) < 1024


@pytest.mark.parametrize("undoing", UNDOING, ids=str)
def test_a_pod_without_a_card_may_do_what_shows_it_none(undoing: dict[str, Any]) -> None:
    shows = "nvidia-container-devices" in str(undoing) or "NVIDIA_VISIBLE" in str(undoing)

    verdict = mutate(pod(limits={}, **undoing), rules())

    assert verdict.allowed is not shows
    assert verdict.patch == []


def test_a_privileged_pod_without_a_card_is_let_be() -> None:
    """It has every device of its node, whatever its variables are."""
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
        assert refused(given_).reason == "tampering"


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
    """Of entries with one name the last counts."""
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


# --- priority -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        {"resources": {"limits": {**SLICE, "nvidia.com/priority": 0}}},
        {"resources": {"limits": {**SLICE, "nvidia.com/priority": "0"}}},
        env("CUDA_TASK_PRIORITY", "0"),
        env("CUDA_TASK_PRIORITY", "-1"),
        env("CUDA_TASK_PRIORITY", "00"),
        env("CUDA_TASK_PRIORITY", "first"),
    ],
    ids=str,
)
def test_only_permitted_namespaces_go_before_others(first: dict[str, Any]) -> None:
    verdict = refused(pod(**first))

    assert verdict.reason == "priority"
    assert "1 or more is wanted" in verdict.message
    assert "HAMI_ADMISSION_PRIORITY_NAMESPACES" in verdict.message
    for names in ({"team"}, {"*"}):
        permitting = rules(TamperingPolicy(priority_namespaces=frozenset(names)))
        assert mutate(pod(**first), permitting).allowed
    other = AdmissionCircumstances(namespace="another")
    permitting = rules(TamperingPolicy(priority_namespaces=frozenset({"team"})))
    assert not mutate(pod(**first), permitting, other).allowed


@pytest.mark.parametrize("priority", [1, 2, "7"])
def test_who_goes_behind_others_needs_no_permission(priority: object) -> None:
    limits = {**SLICE, "nvidia.com/priority": priority}

    assert mutate(pod(limits=limits), rules()).allowed


def test_a_priority_is_warned_of_where_the_permissions_are_not_known() -> None:
    limits = {**SLICE, "nvidia.com/priority": 0}

    verdict = mutate(pod(limits=limits), rules(TamperingPolicy(priority_namespaces=None)))

    assert verdict.allowed
    assert "1 or more is wanted" in verdict.warnings[0]


# --- the operator's switches ----------------------------------------------------------------------


@pytest.mark.parametrize("undoing", [*UNDOING, {"limits": {**SLICE, "nvidia.com/priority": 0}}])
def test_a_trusted_namespace_and_an_allowing_installation_admit_as_hami(
    undoing: dict[str, Any],
) -> None:
    trusting = rules(TamperingPolicy(trusted_namespaces=frozenset({"team"})))
    allowing = rules(TamperingPolicy(mode="allow"))
    given_ = pod(**undoing)

    trusted, allowed = mutate(given_, trusting), mutate(given_, allowing)

    assert trusted.allowed
    assert allowed.allowed
    assert trusted.patch == allowed.patch
    assert trusted.warnings == ()
    assert "tampering" not in trusted.audit
    assert allowed.audit["tampering"].startswith("allowed: container 'other': ") or (
        "priority" in str(undoing)
    )


def test_a_privileged_container_beside_a_card_is_denied_whatever_is_allowed() -> None:
    """As in HAMi."""
    allowing = rules(TamperingPolicy(mode="allow"))
    given_ = pod(securityContext={"privileged": True})

    assert mutate(given_, allowing).message == "container other is privileged"


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


# --- any pod --------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(pods)
def test_a_pod_in_which_nothing_is_found_is_answered_as_if_nothing_were_looked_for(
    given_: dict[str, Any],
) -> None:
    strict = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")
    allowing = AdmissionRules(
        vendors=VENDORS,
        scheduler_name="hami-scheduler",
        tampering=TamperingPolicy(mode="allow"),
    )
    as_hami = mutate(given_, allowing)
    if "tampering" in as_hami.audit or as_hami.reason == "other-scheduler":
        return
    assert mutate(given_, strict) == as_hami or not as_hami.allowed


odd = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        odd,
        lambda inner: st.dictionaries(
            st.sampled_from(
                (
                    *("containers", "initContainers", "ephemeralContainers", "env", "name"),
                    *("value", "valueFrom", "volumes", "hostPath", "path", "volumeMounts"),
                    *("mountPath", "securityContext", "capabilities", "add", "hostPID"),
                )
            ),
            st.one_of(inner, st.lists(inner, max_size=2)),
            max_size=4,
        ),
        max_leaves=12,
    )
)
def test_a_spec_of_any_shape_is_judged(spec: Any) -> None:
    """The scheduler asks about what an API server stored; the simulation about anything."""
    guard = Guard(VENDORS, TamperingPolicy())

    for found in guard.findings({"spec": spec}, NamespacePermits(), wants=True):
        assert found.sentence.isprintable()
