"""`k8s/bootstrap` names the manifests that a cluster can take, and refuses one that it can't."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).parents[3] / "k8s" / "bootstrap"
# A cluster of that version which has the webhook of k8s/base, and nothing that can be written.
KUBECTL = """#!/usr/bin/env bash
case "$*" in
    *"get --raw /version"*) printf '{{\\n  "major": "1",\\n  "minor": "{minor}"\\n}}\\n' ;;
    *failurePolicy*) echo "{policy} Ignore" ;;
    *"get mutatingwebhookconfiguration"*) exit {absent} ;;
    *"get secret"*tls*crt*) cat "{ca}" ;;
    *create*dry-run*) echo "{{}}" ;;
    *apply*) cat >/dev/null ;;
    *get*) exit 0 ;;
esac
"""


def bootstrap(
    tmp_path: Path, minor: str, policy: str = "Fail", *, registered: bool = True
) -> subprocess.CompletedProcess[str]:
    ca = tmp_path / "ca"
    ca.write_text("")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        KUBECTL.format(minor=minor, policy=policy, ca=ca, absent=int(not registered))
    )
    kubectl.chmod(0o755)
    return subprocess.run(
        [BOOTSTRAP],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("minor", ["9", "16", "19", "19+"])
def test_a_version_that_is_too_old_is_refused_at_once(tmp_path: Path, minor: str) -> None:
    done = bootstrap(tmp_path, minor)

    assert done.returncode == 1
    assert f"1.{minor.rstrip('+')} is not supported; 1.20 is the oldest" in done.stderr


@pytest.mark.parametrize(
    ("minor", "manifests"),
    [("20", "old-cluster"), ("22+", "old-cluster"), ("23", "v1.23"), ("27", "v1.25")],
)
def test_a_webhook_that_would_refuse_every_pod_is_not_trusted(
    tmp_path: Path, minor: str, manifests: str
) -> None:
    done = bootstrap(tmp_path, minor)

    assert done.returncode == 1
    assert f"apply k8s/overlays/{manifests} instead" in done.stderr


@pytest.mark.parametrize(
    ("minor", "manifests"), [("28", "overlays/v1.28"), ("29", "overlays/v1.28"), ("30", "base")]
)
def test_what_a_version_can_take_is_named(tmp_path: Path, minor: str, manifests: str) -> None:
    done = bootstrap(tmp_path, minor, registered=False)

    assert done.returncode == 0, done.stderr
    assert f"now apply k8s/{manifests}, then run this again" in done.stdout


@pytest.mark.parametrize(("minor", "policy"), [("28", "Fail"), ("36", "Fail"), ("25", "Ignore")])
def test_what_fits_is_trusted(tmp_path: Path, minor: str, policy: str) -> None:
    done = bootstrap(tmp_path, minor, policy)

    assert done.returncode == 0, done.stderr
    assert "the API server trusts the webhook" in done.stdout
