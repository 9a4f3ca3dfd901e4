"""Settings of `hamictl` from the environment and its file, for other than local systems.

Variables that the environment does not set are taken from `~/.config/hamictl.toml`
(`hamictl.config_file`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from hamictl.config_file import FILE_NAME, ConfigFile, read_config

FILES = frozenset({"folder", "kubeconfig", "migrations"})
"""Further settings, in addition to `*_file`, that are paths with `~` for the home directory."""


class Settings(BaseSettings):
    """Addresses of cluster, services and ledger; not needed for a running local system."""

    model_config = SettingsConfigDict(env_prefix="HAMI_", populate_by_name=True)

    folder: Path = Field(default=Path(".hami"), description="folder of the local system")
    kubeconfig: Path | None = Field(default=None, validation_alias="KUBECONFIG")
    config: Path | None = Field(
        default=None,
        validation_alias="HAMICTL_CONFIG",
        description=f"the file of settings; absent: {FILE_NAME} in XDG_CONFIG_HOME",
    )
    config_home: Path | None = Field(
        default=None,
        validation_alias="XDG_CONFIG_HOME",
        description="where the file of settings is; absent: ~/.config",
    )
    cache_home: Path | None = Field(
        default=None,
        validation_alias="XDG_CACHE_HOME",
        description="where names for a shell's completion are kept; absent: ~/.cache",
    )
    scheduler_url: str = Field(
        default="",
        description="http(s)://host:port of hami-scheduler: its operators' port, or with a client "
        "certificate kube-scheduler's",
    )
    scheduler_ca_file: Path | None = Field(
        default=None,
        description="PEM, the authority of its certificate (ConfigMap hami-ca); absent: those that "
        "this machine trusts",
    )
    scheduler_token_file: Path | None = Field(
        default=None,
        description="a Kubernetes token, such as `kubectl create token NAME --audience "
        "hami-scheduler` prints; read at every call",
    )
    scheduler_token: SecretStr = Field(
        default=SecretStr(""), description="the token itself, in place of the file"
    )
    metrics_url: str = Field(
        default="",
        description="http(s)://host:port of hami-metrics, which answers named questions; "
        "`kubectl port-forward service/hami-metrics 9395` makes it http://localhost:9395",
    )
    metrics_ca_file: Path | None = Field(
        default=None, description="PEM, the authority of its certificate, where it speaks TLS"
    )
    metrics_token_file: Path | None = Field(
        default=None, description="a Kubernetes token for it; read at every call"
    )
    metrics_token: SecretStr = Field(
        default=SecretStr(""), description="the token itself, in place of the file"
    )
    pages_url: str = Field(
        default="", description="http(s)://host:port of the pages, for `hamictl open`"
    )
    postgres_dsn: SecretStr = Field(
        default=SecretStr(""), description="for `hamictl sql` and `hamictl db`"
    )
    redis_url: str = Field(
        default="", description="redis://host:port, which `hamictl doctor` tries to connect to"
    )
    nats_url: str = Field(
        default="", description="nats://host:port, which `hamictl doctor` tries to connect to"
    )
    migrations: Path | None = Field(default=None, description="folder, when not in a checkout")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment, then the file. Raises: InvalidRequest if the file is wrong."""
        found = config_file().addresses
        written = {name: _at_home(name, value) for name, value in found.items()}
        return init_settings, env_settings, InitSettingsSource(settings_cls, written)


class _Location(BaseSettings):
    """Setting of the file's path, from the environment only."""

    model_config = SettingsConfigDict(populate_by_name=True, extra="ignore")

    config: Path | None = Field(default=None, validation_alias="HAMICTL_CONFIG")
    config_home: Path | None = Field(default=None, validation_alias="XDG_CONFIG_HOME")


NOT_IN_THE_FILE = frozenset({"config", "config_home", "cache_home"})


def config_file() -> ConfigFile:
    """Read the configuration file; empty if it does not exist. Raises: InvalidRequest."""
    where = _Location()
    known = [name for name in Settings.model_fields if name not in NOT_IN_THE_FILE]
    if where.config is not None and where.config != Path():
        return read_config(where.config.expanduser(), known, named=True)
    # Relative paths are ignored, an empty one is unset (XDG Base Directory Specification).
    home = where.config_home
    folder = home if home is not None and home.is_absolute() else Path.home() / ".config"
    return read_config(folder / FILE_NAME, known, named=False)


def _at_home(name: str, value: str) -> str:
    """Expand `~` in paths; return other values unchanged."""
    if name in FILES or name.endswith("_file"):
        return str(Path(value).expanduser())
    return value
