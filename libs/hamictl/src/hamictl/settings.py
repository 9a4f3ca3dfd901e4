"""What `hamictl` reads from its environment when it does not talk to a local system."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the cluster, the scheduler and the ledger are; a running local system needs none."""

    model_config = SettingsConfigDict(env_prefix="HAMI_", populate_by_name=True)

    folder: Path = Field(default=Path(".hami"), description="folder of the local system")
    kubeconfig: Path | None = Field(default=None, validation_alias="KUBECONFIG")
    scheduler_url: str = Field(default="", description="http(s)://host:port of hami-scheduler")
    postgres_dsn: SecretStr = Field(default=SecretStr(""), description="for `hamictl sql`")
    migrations: Path | None = Field(default=None, description="folder, when not in a checkout")
