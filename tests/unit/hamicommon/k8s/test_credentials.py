"""Identity from a kubeconfig, or from the pod's service account."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import credentials
from hamicommon.k8s.credentials import Plain, credentials_of


def kubeconfig(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any] | None) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


async def header_of(path: Path) -> str:
    async with credentials_of(path) as found:
        headers: dict[str, str] = {}
        await found.authorize(headers)
        return headers.get("authorization", "")


async def test_a_token_is_sent_as_it_stands(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, cluster={"server": "http://there:1/"}, user={"token": "secret"})

    async with credentials_of(path) as found:
        assert (found.server_url, found.ssl_context) == ("http://there:1", None)
    assert await header_of(path) == "Bearer secret"


async def test_a_users_file_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("kept\n")
    path = kubeconfig(tmp_path, cluster={"server": "http://there"}, user={"tokenFile": "token"})

    assert await header_of(path) == "Bearer kept"


async def test_a_token_is_read_again_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("old")
    path = kubeconfig(tmp_path, cluster={"server": "http://there"}, user={"tokenFile": "token"})
    async with credentials_of(path) as found:
        headers: dict[str, str] = {}
        await found.authorize(headers)
        (tmp_path / "token").write_text("new")
        await found.authorize(headers)
        assert headers["authorization"] == "Bearer old"

        monkeypatch.setattr(credentials, "TOKEN_AGE_S", -1.0)
        await found.authorize(headers)

        assert headers["authorization"] == "Bearer new"


async def test_nobody_in_particular_sends_nothing(tmp_path: Path) -> None:
    assert await header_of(kubeconfig(tmp_path, cluster={"server": "http://a"}, user=None)) == ""


async def test_a_server_may_go_unchecked_if_the_file_allows_it(tmp_path: Path) -> None:
    cluster = {"server": "https://there", "insecure-skip-tls-verify": True}

    async with credentials_of(kubeconfig(tmp_path, cluster=cluster, user={})) as found:
        assert found.ssl_context is not None
        assert found.ssl_context.verify_mode == ssl.CERT_NONE


async def test_what_is_not_plain_goes_to_the_official_client(tmp_path: Path) -> None:
    user = {"username": "somebody", "password": "something"}

    async with credentials_of(
        kubeconfig(tmp_path, cluster={"server": "http://there"}, user=user)
    ) as found:
        assert not isinstance(found, Plain)
        assert found.server_url == "http://there"


@pytest.mark.parametrize(
    ("cluster", "user", "sentence"),
    [
        ({}, {}, "'server' is missing"),
        ({"server": "https://a", "certificate-authority-data": "?"}, {}, "authority-data: "),
        ({"server": "https://a"}, {"client-certificate": "absent", "client-key": "k"}, "absent"),
    ],
    ids=["no server", "no base64", "no file"],
)
async def test_a_file_that_can_not_be_used_is_refused_with_the_reason(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], sentence: str
) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)

    with pytest.raises(InvalidRequest, match=f"KUBECONFIG={path}.*{sentence}"):
        async with credentials_of(path):
            pass


async def test_a_missing_context_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("current-context: gone\ncontexts: []\n")

    with pytest.raises(InvalidRequest, match="contexts: no entry is named 'gone'"):
        async with credentials_of(path):
            pass


async def test_outside_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(InvalidRequest, match="service account: KUBERNETES_SERVICE_HOST"):
        async with credentials_of(None):
            pass


async def test_a_pod_finds_where_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("mine")
    (tmp_path / "ca.crt").write_bytes(b"")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    async with credentials_of(None) as found:
        headers: dict[str, str] = {}
        await found.authorize(headers)

    assert found.server_url == "https://[fd00::1]:443"
    assert headers == {"authorization": "Bearer mine"}


async def test_a_credential_plugin_without_its_package_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(tmp_path, cluster={"server": "https://there:1"}, user={"exec": {}})
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)

    with pytest.raises(InvalidRequest, match=r"install hamicommon\[kubeconfig-plugins\]"):
        async with credentials_of(path):
            pass
