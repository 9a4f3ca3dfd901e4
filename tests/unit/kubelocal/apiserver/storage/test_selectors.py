import pytest
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.storage import selectors

LABELS = {"app": "x", "tier": "back", "size": "5"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("app=x", True),
        ("app = x , tier==back", True),
        ("app!=x", False),
        ("other!=x", True),
        ("app in (x,y)", True),
        ("app notin (x, y)", False),
        ("other notin (x)", True),
        ("app,!other", True),
        ("!app", False),
        ("size>4,size<6", True),
        ("size>5", False),
        ("app>1", False),
        ("other=", False),
    ],
)
def test_label_selectors(text: str, holds: bool) -> None:
    assert selectors.parse_labels(text)(LABELS) is holds


@pytest.mark.parametrize("text", ["a b c", "a=b=c", "app in x", "=x"])
def test_malformed_label_selectors_are_refused(text: str) -> None:
    with pytest.raises(ApiError, match="unable to parse requirement"):
        selectors.parse_labels(text)


def test_field_selectors_know_only_their_labels() -> None:
    supported = frozenset({"spec.nodeName"})
    chosen = selectors.parse_fields("spec.nodeName!=n1", supported)
    assert chosen({"spec.nodeName": ""})
    assert not chosen({"spec.nodeName": "n1"})
    with pytest.raises(ApiError, match=r"field label not supported: spec\.image"):
        selectors.parse_fields("spec.image=x", supported)
    with pytest.raises(ApiError, match="can't understand 'nonsense'"):
        selectors.parse_fields("nonsense", supported)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ({"key": "app", "operator": "In", "values": ["x"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["x"]}, False),
        ({"key": "other", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
    ],
)
def test_selector_objects(expression: dict[str, object], holds: bool) -> None:
    chosen = selectors.from_label_selector(
        {"matchLabels": {"tier": "back"}, "matchExpressions": [expression]}
    )
    assert chosen(LABELS) is holds


def test_an_empty_selector_object_takes_everything() -> None:
    assert selectors.from_label_selector(None)({})
    assert selectors.from_label_selector({})({})
