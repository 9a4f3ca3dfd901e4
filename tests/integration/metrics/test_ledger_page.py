"""The page of the ledger, as Prometheus scrapes it."""

import pytest

from tests.integration.metrics.filled_ledger import fill
from tests.integration.metrics.service import bus, running, sql, until

pytestmark = pytest.mark.integration


async def test_the_page_shows_the_ledger_and_is_empty_of_it_when_stale(
    postgres_dsn: str, nats_url: str
) -> None:
    async with bus(nats_url), sql(postgres_dsn) as db:
        await fill(db)
        async with running(postgres_dsn, nats_url) as (_, http):

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until("ready", ready)
            page = (await http.get("/metrics")).text

    labels = 'device_index="0",device_type="A100",device_uuid="GPU-1",node="n1",zone="vGPU"'
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert (value_of(lines, "hami_gpu_shared_count", labels)) == 2
    assert 'hami_allocations{state="bound"} 1.0' in lines
    assert 'hami_allocations_by_origin{origin="scheduled"} 1.0' in lines
    assert 'hami_allocations_by_origin{origin="claim"} 2.0' in lines
    assert "hami_held_claims 1.0" in lines
    assert "hami_claim_holders 2.0" in lines
    assert 'hami_decisions_last_5m{outcome="refused"} 3.0' in lines
    waiting = [line for line in lines if line.startswith("hami_pending_pods{")]
    assert sum(float(line.rpartition(" ")[2]) for line in waiting) == 1
    assert [line for line in waiting if 'reason="CardInsufficientMemory"' in line and "1.0" in line]
    slices = [line for line in lines if line.startswith("hami_vgpu_memory_allocated_bytes")]
    # init asked for 30 MiB, two app containers for 10 each: the card holds 30.
    assert [float(line.rpartition(" ")[2]) for line in slices] == [30 * 1024 * 1024]
    made = [line for line in lines if line.startswith("hami_node_gpu_mig_instance_info{")]
    # Two containers share it, and what is only reserved is not there.
    assert len(made) == 1
    assert sorted(made[0].partition("{")[2].rpartition("}")[0].split(",")) == [
        'compute_instance_id="0"',
        'device_index="0"',
        'device_uuid="GPU-1"',
        'gpu_instance_id="7"',
        'mig_uuid="MIG-1"',
        'node="n1"',
        'placement_size="2"',
        'placement_start="4"',
        'profile="2g.20gb"',
        'zone="vGPU"',
    ]


def value_of(lines: list[str], name: str, labels: str) -> float | None:
    """The value of the sample with these labels, whatever their order."""
    for line in lines:
        if line.startswith(f"{name}{{"):
            inside, _, value = line[len(name) + 1 :].rpartition("} ")
            if sorted(inside.split(",")) == sorted(labels.split(",")):
                return float(value)
    return None


async def test_cards_whose_ids_are_unique_on_their_node_only_keep_their_ids(
    postgres_dsn: str, nats_url: str
) -> None:
    async with bus(nats_url), sql(postgres_dsn) as db:
        for node in ("a", "b"):
            await db.execute(
                "INSERT INTO nodes (name, source) VALUES ($1, 'annotation')", f"dcu-{node}"
            )
            await db.execute(
                "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, "
                "core_percent, used_slots, used_memory_mib, ceiling_slots, ceiling_memory_mib, "
                "ceiling_core_percent, healthy) VALUES ('DCU-0@dcu-' || $1, 'dcu-' || $1, 'DCU', "
                "0, 'DCU-Z100', 4, 1000, 100, 1, 30, 4, 1000, 100, true)",
                node,
            )
            number = f"00000000-0000-4000-8000-00000000000{node}"
            await db.execute(
                "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state) "
                "VALUES ($1, $2, 'ns', $2, 1, 'dcu-' || $2, 'bound')",
                number,
                node,
            )
            await db.execute(
                "INSERT INTO allocation_devices (allocation_id, container_index, position, "
                "container_name, role, device_uuid, vendor, memory_mib, core_percent) "
                "VALUES ($1, 0, 0, 'c', 'app', 'DCU-0@dcu-' || $2::text, 'DCU', 30, 0)",
                number,
                node,
            )
        async with running(postgres_dsn, nats_url) as (_, http):

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until("ready", ready)
            page = (await http.get("/metrics")).text

    lines = [line for line in page.splitlines() if not line.startswith("#")]
    for node in ("a", "b"):
        labels = f'device_index="0",device_type="DCU-Z100",device_uuid="DCU-0",node="dcu-{node}"'
        assert value_of(lines, "hami_gpu_shared_count", f'{labels},zone="vGPU"') == 1
        [held] = [
            line
            for line in lines
            if line.startswith("hami_vgpu_memory_allocated_bytes") and f'node="dcu-{node}"' in line
        ]
        assert 'device_uuid="DCU-0"' in held
    assert "@" not in page
