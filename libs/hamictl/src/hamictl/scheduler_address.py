"""Where the scheduler is and who we are to it, checked before anything is sent."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hamicommon.errors import InvalidRequest

PAGE = "docs/hamictl-on-a-cluster.md"
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerAddress:
    """As in the settings of the same names; empty and None: not given."""

    url: str
    ca_file: Path | None = None
    token: str = ""
    token_file: Path | None = None
    prefix: str = "HAMI_SCHEDULER"
    """Of the settings' names."""
    service: str = "hami-scheduler"
    log: str = ""
    """The file with its log, where it is a service of the local system."""
    restarts: int = 0
    """How often the local system's supervisor has started it again."""

    @property
    def host(self) -> str:
        """Of the URL. Raises: InvalidRequest when it is none."""
        try:
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return parts.hostname
        except ValueError:
            pass
        raise InvalidRequest(f"{self.prefix}_URL={self.url}: http(s)://host:port is wanted")

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.url.lower().startswith("https:")

    def headers(self) -> dict[str, str]:
        """What every call carries. Raises: InvalidRequest when the token is not usable."""
        source, token = f"{self.prefix}_TOKEN", self.token
        if self.token_file is not None:
            if token:
                raise InvalidRequest(
                    f"{self.prefix}_TOKEN and _TOKEN_FILE are both set: one will do"
                )
            source = f"{self.prefix}_TOKEN_FILE={self.token_file}"
            token = _read(self.token_file, source)
            if not token.strip():
                raise InvalidRequest(f"{source}: the file is empty")
        token = token.strip()
        if not token:
            return {}
        if not _TOKEN.fullmatch(token):
            raise InvalidRequest(
                f"{source}: that is no token: it holds spaces, or other than ASCII"
            )
        if not self.secure:
            raise InvalidRequest(
                f"{self.prefix}_URL={self.url}: a token is sent over https:// alone"
            )
        return {"Authorization": f"Bearer {token}"}

    def ssl_context(self) -> ssl.SSLContext | bool:
        """How the server is known; False for plain HTTP.

        Raises: InvalidRequest naming the setting and what is wrong with its file.
        """
        if not self.secure:
            return False
        source = f"{self.prefix}_CA_FILE={self.ca_file}"
        authorities = None if self.ca_file is None else _read(self.ca_file, source)
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (ssl.SSLError, ValueError) as exc:
            raise InvalidRequest(f"{source}: a certificate in PEM form is wanted") from exc
        return context


def metrics_address(
    url: str,
    *,
    ca_file: Path | None = None,
    token: str = "",
    token_file: Path | None = None,
) -> SchedulerAddress:
    """Of hami-metrics, with the same rules: a token over TLS alone, an authority in a file."""
    return SchedulerAddress(
        url=url,
        ca_file=ca_file,
        token=token,
        token_file=token_file,
        prefix="HAMI_METRICS",
        service="hami-metrics",
    )


def _read(path: Path, source: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as exc:
        raise InvalidRequest(f"{source}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{source}: the file is no text") from exc
