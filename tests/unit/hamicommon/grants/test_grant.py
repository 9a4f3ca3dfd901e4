"""The signed grant: only what our scheduler signed, unchanged and in time, is believed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.grants import grant as grants
from hamicommon.grants import signing

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def key_files(tmp_path: Path) -> tuple[Path, Path]:
    private, public = signing.new_key_pair()
    paths = tmp_path / "key", tmp_path / "pub"
    paths[0].write_bytes(private)
    paths[1].write_bytes(public)
    return paths


def an_allocation(token: int | None = 7) -> Allocation:
    return Allocation(
        id=AllocationId("a-1"),
        pod_uid=PodUid("u-1"),
        namespace="ns",
        pod_name="pod",
        attempt=1,
        node=NodeName("node-0"),
        state=AllocationState.BINDING,
        token=token,
        reserved_at=NOW,
        containers=(
            ContainerGrant(index=0, name="plain", role="init"),
            ContainerGrant(
                index=1,
                name="cuda",
                role="app",
                shares=(
                    DeviceShare(
                        uuid=GpuUuid("GPU-1"), vendor="NVIDIA", memory_mib=4096, core_percent=30
                    ),
                ),
            ),
        ),
    )


def test_a_signed_grant_is_read_back_as_it_was(key_files: tuple[Path, Path]) -> None:
    grant = grants.grant_of(an_allocation(), expires_at=NOW + timedelta(minutes=5))

    text = signing.sign(grant, signing.load_private_key(key_files[0]))

    assert grants.verify(text, grants.load_public_key(key_files[1]), now=NOW) == grant
    assert grant.domain_containers() == an_allocation().containers


def test_an_agent_that_knows_no_sidecars_reads_one_as_an_app_container() -> None:
    share = DeviceShare(uuid=GpuUuid("GPU-1"), vendor="NVIDIA", memory_mib=1, core_percent=0)
    containers = (
        ContainerGrant(index=0, name="sidecar", role="sidecar", shares=(share,)),
        ContainerGrant(index=1, name="prepare", role="init", shares=(share,)),
        ContainerGrant(index=2, name="cuda", role="app", shares=(share,)),
    )
    allocation = replace(an_allocation(), containers=containers)

    grant = grants.grant_of(allocation, expires_at=NOW)

    assert [container.role for container in grant.containers] == ["app", "init", "app"]
    read = grants.Grant.model_validate_json(grant.model_dump_json(exclude_defaults=True))
    assert read.domain_containers() == containers
    assert grant.version == 1


def test_a_grant_that_was_changed_is_refused(key_files: tuple[Path, Path]) -> None:
    grant = grants.grant_of(an_allocation(), expires_at=NOW + timedelta(minutes=5))
    payload, _, signature = signing.sign(grant, signing.load_private_key(key_files[0])).partition(
        "."
    )
    other = signing.sign(
        grant.model_copy(update={"node": "node-1"}), signing.load_private_key(key_files[0])
    ).partition(".")[0]

    assert payload != other
    with pytest.raises(InvalidRequest, match="no valid signature of hami-scheduler"):
        grants.verify(f"{other}.{signature}", grants.load_public_key(key_files[1]), now=NOW)


def test_a_grant_of_another_key_is_refused(key_files: tuple[Path, Path]) -> None:
    grant = grants.grant_of(an_allocation(), expires_at=NOW + timedelta(minutes=5))
    foreign = key_files[0].with_name("foreign")
    foreign.write_bytes(signing.new_key_pair()[0])

    text = signing.sign(grant, signing.load_private_key(foreign))

    with pytest.raises(InvalidRequest, match="no valid signature of hami-scheduler"):
        grants.verify(text, grants.load_public_key(key_files[1]), now=NOW)


def test_a_grant_past_its_expiry_is_refused(key_files: tuple[Path, Path]) -> None:
    text = signing.sign(
        grants.grant_of(an_allocation(), expires_at=NOW), signing.load_private_key(key_files[0])
    )

    with pytest.raises(InvalidRequest, match="expired"):
        grants.verify(
            text, grants.load_public_key(key_files[1]), now=NOW + timedelta(microseconds=1)
        )


@pytest.mark.parametrize("text", ["", ".", "x", "e30.e30", "ä.ö", "a.b.c", "e30" * 1000])
def test_garbage_is_refused_with_a_sentence(text: str, key_files: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidRequest, match=r"hami\.io/grant"):
        grants.verify(text, grants.load_public_key(key_files[1]), now=NOW)


def test_an_allocation_that_is_not_being_bound_has_no_grant() -> None:
    with pytest.raises(InvalidRequest, match="no token"):
        grants.grant_of(an_allocation(token=None), expires_at=NOW)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere"):
        grants.load_public_key(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEA\n-----END PUBLIC KEY-----",
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----",
    ],
    ids=["empty", "another-kind", "cut-short"],
)
def test_what_is_no_ed25519_key_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "grant.pub"
    file.write_text(text)

    with pytest.raises(InvalidRequest, match="expected an Ed25519 public key in PEM form"):
        grants.load_public_key(file)


def test_a_key_of_a_pair_verifies_as_its_file_does(key_files: tuple[Path, Path]) -> None:
    private = signing.load_private_key(key_files[0])

    assert signing.public_key(private) == grants.load_public_key(key_files[1])
