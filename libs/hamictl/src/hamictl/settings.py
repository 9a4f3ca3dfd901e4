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
    scheduler_cert_file: Path | None = Field(
        default=None,
        description="PEM, a client certificate for kube-scheduler's port, where no token is asked "
        "for; with scheduler_key_file",
    )
    scheduler_key_file: Path | None = Field(default=None, description="PEM, without a password")
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
    migrations: Path | None = Field(default=None, description="folder, when not in a checkout")
