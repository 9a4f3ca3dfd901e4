"""What is wrong with the settings is said with the variable's name and without its value."""

import pytest
from hamicommon.settings import PostgresSettings, describe
from pydantic import ValidationError


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAMI_POSTGRES_DSN", raising=False)
    with pytest.raises(ValidationError) as caught:
        PostgresSettings()  # type: ignore[call-arg]

    sentence = str(describe(caught.value))

    assert sentence == "the settings are not usable: HAMI_POSTGRES_DSN: Field required"


def test_a_wrong_value_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_POSTGRES_DSN", "postgresql://secret@host/x")
    monkeypatch.setenv("HAMI_POSTGRES_POOL_MAX", "swordfish")
    with pytest.raises(ValidationError) as caught:
        PostgresSettings()  # type: ignore[call-arg]

    sentence = str(describe(caught.value))

    assert "HAMI_POSTGRES_POOL_MAX: " in sentence
    assert "swordfish" not in sentence
    assert "secret" not in sentence
