"""What is wrong with the settings is reported with the variable's name and without its value."""

import pytest
from hamicommon.settings import PostgresSettings, describe
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAMI_POSTGRES_DSN", raising=False)
    with pytest.raises(ValidationError) as caught:
        PostgresSettings()

    sentence = str(describe(caught.value, PostgresSettings))

    assert sentence == "the settings are not usable: HAMI_POSTGRES_DSN: Field required"


def test_a_wrong_value_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_POSTGRES_DSN", "postgresql://secret@host/x")
    monkeypatch.setenv("HAMI_POSTGRES_POOL_MAX", "swordfish")
    with pytest.raises(ValidationError) as caught:
        PostgresSettings()

    sentence = str(describe(caught.value, PostgresSettings))

    assert "HAMI_POSTGRES_POOL_MAX: " in sentence
    assert "swordfish" not in sentence
    assert "secret" not in sentence


def test_of_two_services_in_one_process_each_has_its_own_variables() -> None:
    def settings_of(prefix: str) -> type[BaseSettings]:
        class Settings(BaseSettings):
            model_config = SettingsConfigDict(env_prefix=prefix)

            port: int

        return Settings

    first, second = settings_of("HAMI_FIRST_"), settings_of("HAMI_SECOND_")
    with pytest.raises(ValidationError) as caught:
        second()

    assert "HAMI_FIRST_PORT: Field required" in str(describe(caught.value, first))
    assert "HAMI_SECOND_PORT: Field required" in str(describe(caught.value, second))


def test_a_variable_of_a_group_is_named_as_the_group_has_it() -> None:
    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="HAMI_SERVICE_")

        postgres: PostgresSettings

    with pytest.raises(ValidationError) as caught:
        PostgresSettings(pool_max="many")

    assert "HAMI_POSTGRES_POOL_MAX: " in str(describe(caught.value, Settings))
