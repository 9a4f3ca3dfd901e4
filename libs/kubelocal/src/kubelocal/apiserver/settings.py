"""Settings of the emulated API server: flags first, then `HAMI_APISERVER_...` variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Flags are the field names with hyphens: `--tls-cert FILE`."""

    model_config = SettingsConfigDict(
        env_prefix="HAMI_APISERVER_",
        cli_kebab_case=True,
        cli_prog_name="python -m kubelocal.apiserver",
    )

    data: Path = Field(description="folder of the object store; made if it does not exist")
    host: str = Field(default="127.0.0.1", description="address to listen on (loopback)")
    port: int = Field(ge=0, le=65535, description="port to listen on")
    tls_cert: Path = Field(description="serving certificate, PEM")
    tls_key: Path = Field(description="its private key, PEM")
    token_file: Path = Field(description='lines of token,user,uid,"group1,group2"')
    service_map: list[str] = Field(
        default_factory=list,
        description="NAMESPACE/NAME[:PORT]=HOST:PORT of a webhook's service; may be repeated",
    )
    lost_node_s: float = Field(
        default=20.0, ge=0, description="seconds after which pods of a deleted node are removed"
    )
    event_life_s: float = Field(default=3600.0, gt=0, description="seconds that events are kept")
    compact_every: int = Field(
        default=0,
        ge=0,
        description="for tests: forget the watch history every so many writes (0: never)",
    )
