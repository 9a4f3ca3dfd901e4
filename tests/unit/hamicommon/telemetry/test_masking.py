"""Whatever looks like a secret is masked, and nothing else changes."""

from __future__ import annotations

import json

import pytest
from hamicommon.telemetry.masking import MASK, mask_secrets
from hypothesis import given
from hypothesis import strategies as st

SECRET = "sw0rdfish-Marked.Secret_1"
JWT = f"eyJhbGciOiJSUzI1NiJ9.{SECRET.replace('.', '')}.c2lnbmF0dXJl-_"
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\nMIIE+/=\n-----END PRIVATE KEY-----"
TEXTS = {
    "a DSN": f"can't reach postgresql://hami:{SECRET}@db:5432/hami?sslmode=require",
    "a DSN of two servers": f"postgresql://hami:{SECRET}@a:1,b:2/hami",
    "a password with an @": f"redis://:p@{SECRET}@redis:6379/0",
    "addresses of a bus": f"nats://u:{SECRET}@a:4222,nats://u:{SECRET}@b:4222",
    "a token in an address": f"nats://{SECRET}@a:4222",
    "a header": f"Authorization: Bearer {SECRET}",
    "a header in lower case": f"{{'authorization': 'bearer {SECRET}'}}",
    "basic": "Authorization: Basic c3cwcmRmaXNoLU1hcmtlZA==",
    "a service account's token": f"token {JWT} is not known",
    "a key": f"can't load {KEY}",
    "a key that was cut off": f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\nMII",
    "libpq's other form": f"host=db user=hami password={SECRET} dbname=hami",
    "a query": f"GET /?password={SECRET}&at=now",
}
HARMLESS = (
    "scheduler took 4 ms",
    "https://127.0.0.1:6443/api/v1/pods?labelSelector=a%3Db",
    "nats://127.0.0.1:4222,nats://b:4222",
    "no card of 12 on 3 nodes has 100000 MiB; ask for less (fits if nvidia.com/gpumem <= 81920)",
    "hami/vgpu-probe@sha256:0123",
    "mail to operators@example.com",
    "basic limits: bearer of bad news",
    "token=7 of node a",
    "GPU-e8f615e8-5ef3-5fe1-a033-751e797eb495,NVIDIA,3000,30:;",
)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_secret_is_masked(text: str) -> None:
    shown = mask_secrets(text)

    assert MASK in shown
    for part in (SECRET, SECRET.replace(".", ""), "c3cwcmRmaXNoLU1hcmtlZA", "MII"):
        assert part not in shown
    assert mask_secrets(shown) == shown


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_line_that_is_json_stays_json(text: str) -> None:
    line = {"error": text, "after": "kept", "quoted": f'"{text}"\\'}

    shown = json.loads(mask_secrets(json.dumps(line)))

    assert shown.keys() == line.keys()
    assert shown["after"] == "kept"
    assert SECRET not in json.dumps(shown)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_holds_no_secret_is_the_same_object(text: str) -> None:
    assert mask_secrets(text) is text


@given(st.dictionaries(st.text(), st.text() | st.sampled_from(sorted(TEXTS.values()))))
def test_no_line_is_ever_broken(fields: dict[str, str]) -> None:
    assert json.loads(mask_secrets(json.dumps(fields))).keys() == {
        json.loads(mask_secrets(json.dumps(key))) for key in fields
    }
