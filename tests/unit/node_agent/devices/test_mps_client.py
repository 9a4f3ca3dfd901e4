import pytest
from hami_node_agent.devices.device_list import MpsPolicy, mps_envs, mps_mounts
from hamicommon.domain.allocations import DeviceShare

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_share

WHERE = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}


@pytest.mark.parametrize(
    ("shares", "envs"),
    [
        pytest.param(
            (a_share(CARD_A, 4096, 30),),
            {
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
            },
            id="one slice",
        ),
        pytest.param(
            (a_share(CARD_A, 4096, 100),),
            {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M"},
            id="all cores are no limit",
        ),
        pytest.param((a_share(CARD_A, 0, 0),), {}, id="no limit at all"),
        pytest.param(
            (a_share(CARD_A, 1024, 50), a_share(CARD_A, 1024, 50), a_share(CARD_B, 512, 20)),
            {
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M,1=512M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
            },
            id="two slices of a card are one device, the smallest share counts",
        ),
    ],
)
def test_a_share_in_cudas_variables(shares: tuple[DeviceShare, ...], envs: dict[str, str]) -> None:
    assert mps_envs(shares) == WHERE | envs


def test_the_daemons_shared_memory_is_mounted_where_it_has_its_own() -> None:
    mounts = mps_mounts(MpsPolicy(pipe_dir="/run/nvidia/mps/pipe", shm_dir="/run/nvidia/mps/shm"))

    assert [(m.container_path, m.host_path) for m in mounts] == [
        ("/tmp/nvidia-mps", "/run/nvidia/mps/pipe"),
        ("/dev/shm", "/run/nvidia/mps/shm"),
    ]
