"""The configuration of the bus, as data."""

import json

import pytest
from hamilocal.servers.data.nats_config import NatsUser, render_nats_config


def test_it_listens_on_loopback_and_keeps_streams_in_the_given_folder() -> None:
    config = json.loads(render_nats_config(port=4222, store_dir="/data", server_name="one"))
    assert (config["host"], config["port"]) == ("127.0.0.1", 4222)
    assert config["jetstream"] == {"store_dir": "/data", "strict": True}
    assert "authorization" not in config


def test_no_subject_at_all_is_a_refusal_of_everything() -> None:
    user = NatsUser(name="reader", password="x", publish=())
    config = json.loads(render_nats_config(port=1, store_dir="/d", server_name="one", users=[user]))
    assert config["authorization"]["users"][0]["permissions"] == {"publish": {"deny": [">"]}}


def test_an_nkey_user_has_no_password() -> None:
    user = NatsUser(nkey="UABC", subscribe=("a.>",), allow_responses=True)
    config = json.loads(render_nats_config(port=1, store_dir="/d", server_name="one", users=[user]))
    assert config["authorization"]["users"] == [
        {
            "nkey": "UABC",
            "permissions": {"subscribe": {"allow": ["a.>"]}, "allow_responses": True},
        }
    ]


@pytest.mark.parametrize(
    "fields",
    [{}, {"name": "a"}, {"name": "a", "password": "b", "nkey": "U"}],
    ids=["nothing", "no password", "both"],
)
def test_a_user_has_either_a_password_or_an_nkey(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="either name and password, or an nkey"):
        NatsUser(**fields)
