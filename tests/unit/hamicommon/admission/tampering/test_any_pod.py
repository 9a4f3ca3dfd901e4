"""Any pod is judged, and one in which nothing is found is answered as HAMi answers it."""

from typing import Any

from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import NamespacePermits, TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.device_config import load
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.webhook.test_any_review import pods

VENDORS = Vendors.from_config(load(None), enable_ascend=True, enable_iluvatar=True)


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
