"""Invalid settings are reported with the variable's name and without its value."""

import pytest
from hamicommon.settings import PostgresSettings, RedisSettings, describe, unknown_variables
from pydantic import SecretStr, ValidationError
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


@pytest.mark.parametrize(
    "address",
    [
        "redis://:trout/eel@redis:6379/0",
        "redis://:12/trout@redis:6379/0",
        "rediss://user:trout#eel@redis:6379/0",
        "redis://:trout?eel@redis:6379/0",
        "redis://:trout[eel@redis:6379/0",
    ],
)
def test_a_password_that_would_end_its_address_is_refused_without_a_part_of_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAMI_REDIS_URL", address)
    with pytest.raises(ValidationError) as caught:
        RedisSettings()

    sentence = str(describe(caught.value, RedisSettings))

    assert sentence.startswith("the settings are not usable: HAMI_REDIS_URL: ")
    assert "write /, ?, # and [ of the password as %2F, %3F, %23 and %5B" in sentence
    for part in ("trout", "eel", "12"):
        assert part not in sentence


@pytest.mark.parametrize(
    "address",
    [
        "redis://:p%2Fq@redis:6379/0",
        "redis://redis/0",
        "unix:///run/redis.sock?db=1",
        "redis://u:p@a@redis/0",
        "redis://redis/0?client_name=a@b",
        "redis://u:p@[::1]:6379/0",
    ],
)
def test_an_address_with_or_without_a_password_is_taken(address: str) -> None:
    assert RedisSettings(url=SecretStr(address)).url.get_secret_value() == address


def test_a_variable_that_is_no_setting_is_named() -> None:
    variables = (
        *("HAMI_POSTGRES_DSN", "HAMI_POSTGRES_POOL", "HAMI_REDIS_URLS", "HAMI_POSTGRES_OLD_NAME"),
        # Kubernetes sets these for a Service hami-postgres.
        *("HAMI_POSTGRES_SERVICE_HOST", "HAMI_POSTGRES_SERVICE_PORT_SQL", "HAMI_POSTGRES_PORT"),
        *("HAMI_POSTGRES_PORT_5432_TCP", "HAMI_POSTGRES_PORT_5432_TCP_ADDR"),
    )

    unknown = unknown_variables(PostgresSettings, variables, others=("HAMI_POSTGRES_OLD_",))

    assert unknown == ["HAMI_POSTGRES_POOL"]
