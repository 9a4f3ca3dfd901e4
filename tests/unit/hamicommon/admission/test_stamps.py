"""The annotations that admission writes and drops: the trace, the creator, the scheduler's own."""

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionCircumstances

from tests.unit.hamicommon.admission.pods import (
    GPU,
    container,
    patched,
    pod,
    rules,
)


def test_annotations_of_the_scheduler_are_dropped_and_the_users_are_kept() -> None:
    given_ = pod(container({GPU: 1}))
    given_["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n",
        "hami.io/grant": "forged",
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,1,1:;",
        "nvidia.com/use-gputype": "A100",
    }

    after = patched(given_, mutate(given_, rules()))
    assert after["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100"}


def test_the_trace_is_stamped_over_a_users_value_and_only_on_pods_with_cards() -> None:
    given_ = pod(container({GPU: 1}))
    after = patched(
        given_, mutate(given_, rules(), AdmissionCircumstances(traceparent="00-a-b-01"))
    )
    assert after["metadata"]["annotations"] == {"hami.io/traceparent": "00-a-b-01"}

    again = patched(after, mutate(after, rules(), AdmissionCircumstances(traceparent="00-c-d-01")))
    assert again["metadata"]["annotations"] == {"hami.io/traceparent": "00-c-d-01"}
    assert (
        mutate(pod(container()), rules(), AdmissionCircumstances(traceparent="00-a-b-01")).patch
        == []
    )


CREATOR = "hami.io/created-by"


@pytest.mark.parametrize(
    "annotations",
    [None, {}, {CREATOR: "root"}, {CREATOR: "root", "mine": "1"}, {"hami.io/traceparent": "x"}],
)
@pytest.mark.parametrize("username", ["alice", "system:serviceaccount:ns:bot", ""])
def test_the_creator_is_whom_the_api_server_names_whatever_the_author_wrote(
    annotations: dict[str, str] | None, username: str
) -> None:
    given_ = pod(container({GPU: 1}))
    if annotations is not None:
        given_["metadata"]["annotations"] = dict(annotations)
    about = AdmissionCircumstances(traceparent="00-a-b-01", username=username)

    after = patched(given_, mutate(given_, rules(), about))

    wanted = {"hami.io/traceparent": "00-a-b-01"} | ({CREATOR: username} if username else {})
    kept = {"mine": "1"} if annotations and "mine" in annotations else {}
    assert after["metadata"]["annotations"] == wanted | kept
    assert mutate(after, rules(), about).patch == []


def test_a_pod_without_cards_names_no_creator() -> None:
    given_ = pod(container())
    given_["metadata"]["annotations"] = {CREATOR: "root"}

    after = patched(given_, mutate(given_, rules(), AdmissionCircumstances(username="alice")))

    assert CREATOR not in after["metadata"]["annotations"]


def test_the_name_of_a_creator_is_bounded() -> None:
    given_ = pod(container({GPU: 1}))
    about = AdmissionCircumstances(username="a\n" * 5000)

    after = patched(given_, mutate(given_, rules(), about))

    assert len(after["metadata"]["annotations"][CREATOR]) <= 256
    assert after["metadata"]["annotations"][CREATOR].isprintable()
