"""HAMi's device-config.yaml is read unchanged; errors in it are named."""

from pathlib import Path

import pytest
import yaml
from hamicommon.device_config import DeviceConfig, HygonConfig, NvidiaConfig, load, parse
from hamicommon.errors import InvalidRequest

ILUVATAR = {"chipName": "BI", "commonWord": "BI", "resourceCountName": "iluvatar.ai/BI"}
CHIP = {
    "chipName": "X",
    "commonWord": "AscendX",
    "resourceName": "huawei.com/AscendX",
    "memoryAllocatable": 8192,
    "memoryCapacity": 8192,
    "aiCore": 8,
}


def _templates(*templates: dict[str, object]) -> dict[str, object]:
    return {"vnpus": {"configs": [CHIP | {"templates": list(templates)}]}}


def test_without_a_file_the_charts_defaults_hold() -> None:
    assert load(None) == DeviceConfig()
    assert NvidiaConfig().resource_count_name == "nvidia.com/gpu"
    assert NvidiaConfig().device_split_count == 10


def test_keys_are_hamis() -> None:
    config = parse(
        {
            "nvidia": {
                "resourceCountName": "example.com/gpu",
                "defaultGPUNum": 0,
                "deviceMemoryScaling": 2,
                "libCudaLogLevel": 4,
                "migProfileAllowlist": [{"models": ["A30"], "profiles": ["1g.6gb"]}],
            }
        }
    ).nvidia

    assert config.resource_count_name == "example.com/gpu"
    assert config.default_gpu_num == 0
    assert config.device_memory_scaling == 2.0
    assert config.lib_cuda_log_level == "4"
    assert config.mig_profile_allowlist[0].profiles == ("1g.6gb",)
    assert config.default_memory == 0


def test_a_block_that_is_there_has_the_defaults_and_a_vendor_without_one_is_not_served() -> None:
    config = parse({"nvidia": {}, "hygon": {"memoryFactor": 4}, "amd": None})

    assert config.nvidia == NvidiaConfig()
    assert config.hygon == HygonConfig(memory_factor=4)
    assert config.amd is None
    assert config.iluvatars == ()
    assert config.notes == (
        "not served, because the file has no such block: cambricon, metax, enflame, mthreads, "
        "iluvatars, kunlun, awsneuron, amd, vastai, biren, vnpus",
    )


def test_keys_of_older_versions_are_ignored_with_a_note() -> None:
    config = parse({"nvidia": {"knownMigGeometries": []}})

    assert config.nvidia == NvidiaConfig()
    assert config.notes[0] == "nvidia.knownMigGeometries: a key of older versions; it is ignored"


def test_the_older_list_of_vnpus_is_read_with_a_note() -> None:
    config = parse({"vnpus": [CHIP]})

    assert [chip.common_word for chip in config.vnpus.configs] == ["AscendX"]
    assert "vnpus: a list is the form of older versions" in config.notes[0]


def test_templates_of_a_chip_are_sorted_by_memory() -> None:
    templates = [{"name": "big", "memory": 4096}, {"name": "small", "memory": 1024, "aiCPU": 2}]

    (chip,) = parse({"vnpus": {"configs": [CHIP | {"templates": templates}]}}).vnpus.configs

    assert [(t.name, t.memory, t.ai_cpu) for t in chip.templates] == [
        ("small", 1024, 2),
        ("big", 4096, 0),
    ]


def test_what_the_file_has_for_nvidias_plugin_is_left_to_it() -> None:
    config = parse({"version": "v1", "sharing": {"timeSlicing": {}}, "nvidia": {}})
    assert config.nvidia is not None
    assert config.hygon is None


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (None, "is empty"),
        ({}, "is empty"),
        ({"nvidia": None, "hygon": None}, "is empty"),
        ([], r"is \[\]: expected blocks such as nvidia:"),
        (["nvidia"], r"is \['nvidia'\]: expected blocks such as nvidia:"),
        ({"version": "v1"}, "is empty"),
        ({"nvdia": {}}, "nvdia: unknown block; did you mean nvidia"),
        ({"iluvatar": []}, "iluvatar: unknown block; did you mean iluvatars"),
        ({"hygon": []}, r"hygon: expected a mapping of keys, not \[\]"),
        ({"hygon": {"memFactor": 1}}, "hygon.memFactor: unknown key; did you mean memoryFactor"),
        (
            {"amd": {"resourceCountName": "amd gpu"}},
            "amd.resourceCountName is 'amd gpu': expected the name",
        ),
        (
            {"metax": {"sgpuTopologyAware": 1}},
            "metax.sgpuTopologyAware is 1: expected true or false",
        ),
        (
            {"hygon": {"resourceCountName": "a.b/c"}, "amd": {"resourceMemoryName": "a.b/c"}},
            "amd.resourceMemoryName is 'a.b/c', which hygon.resourceCountName is already",
        ),
        ({"iluvatars": {}}, "iluvatars is {}: expected a list"),
        ({"iluvatars": [{"chipName": "BI"}]}, r"iluvatars\[0\]: the key commonWord is missing"),
        ({"iluvatars": [ILUVATAR | {"commonWord": "a/b"}]}, r"iluvatars\[0\]: commonWord is 'a/b'"),
        ({"iluvatars": [ILUVATAR | {"chipName": ""}]}, r"iluvatars\[0\]: chipName and resource"),
        (
            {"iluvatars": [ILUVATAR, ILUVATAR | {"resourceCountName": "iluvatar.ai/other"}]},
            r"iluvatars\[1\].commonWord is 'BI', which iluvatars\[0\].commonWord is already",
        ),
        ({"vnpus": {"config": []}}, "vnpus.config: unknown key; did you mean configs"),
        (
            {"vnpus": {"configs": [CHIP | {"memoryAllocatable": 9000}]}},
            r"configs\[0\]: memoryAllocatable is 9000: expected 1 to memoryCapacity, which is 8192",
        ),
        ({"vnpus": {"configs": [CHIP | {"resourceName": ""}]}}, "resourceName must not be empty"),
        (_templates({"name": "", "memory": 1}), r"configs\[0\].templates\[0\]: name is ''"),
        (
            _templates({"name": "a", "memory": "1Gi"}),
            r"templates\[0\].memory is '1Gi': expected a whole",
        ),
        (_templates({"name": "a"}), r"templates\[0\]: the key memory is missing"),
        (_templates({"name": "a", "memory": 9000}), "'a' has 9000 MiB, more than memoryCapacity"),
        (_templates({"name": "a", "memory": 1, "aiCore": 9}), "'a' has 9 cores, more than aiCore"),
        (
            _templates({"name": "a", "memory": 1}, {"name": "a", "memory": 2}),
            r"configs\[0\]: templates: 'a' appears more than once",
        ),
        ({"nvidia": 1}, "nvidia: expected a mapping"),
        ({"nvidia": {"defaultGpuNum": 1}}, "nvidia.defaultGpuNum: unknown key; did you mean"),
        ({"nvidia": {"xyz": 1}}, "nvidia.xyz: unknown key$"),
        (
            {"nvidia": {"defaultMemory": "1"}},
            "nvidia.defaultMemory is '1': expected a whole number",
        ),
        ({"nvidia": {"defaultMemory": -1}}, "nvidia.defaultMemory is -1"),
        ({"nvidia": {"deviceSplitCount": True}}, "nvidia.deviceSplitCount is True"),
        (
            {"nvidia": {"overwriteEnv": "yes"}},
            "nvidia.overwriteEnv is 'yes': expected true or false",
        ),
        (
            {"nvidia": {"deviceCoreScaling": 0}},
            "nvidia.deviceCoreScaling is 0: expected a number above 0",
        ),
        ({"nvidia": {"runtimeClassName": []}}, "nvidia.runtimeClassName is"),
        (
            {"nvidia": {"migProfileAllowlist": 1}},
            "nvidia.migProfileAllowlist is 1: expected a list",
        ),
        (
            {"nvidia": {"migProfileAllowlist": [{}]}},
            r"migProfileAllowlist\[0\]: the key models is missing",
        ),
        (
            {"nvidia": {"migProfileAllowlist": [{"models": "A", "profiles": []}]}},
            r"migProfileAllowlist\[0\].models is 'A': expected a list",
        ),
        (
            {"nvidia": {"migProfileAllowlist": [{"models": [], "profiles": ["1g.5gb"]}]}},
            "at least one model",
        ),
        (
            {"nvidia": {"migProfileAllowlist": [{"models": ["A"], "profiles": ["g.5gb"]}]}},
            "profile 'g.5gb' is malformed",
        ),
    ],
)
def test_what_is_wrong_is_named(document, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        parse(document)


def test_a_file_is_read_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text(yaml.safe_dump({"nvidia": {"defaultCores": 5}}))
    assert load(path).nvidia.default_cores == 5

    path.write_text("nvidia: {defaultCores: x}")
    with pytest.raises(InvalidRequest, match=rf"{path}: nvidia.defaultCores is 'x'"):
        load(path)
    path.write_text("{")
    with pytest.raises(InvalidRequest, match="not a readable YAML file"):
        load(path)
    with pytest.raises(InvalidRequest, match="not a readable YAML file"):
        load(tmp_path / "missing.yaml")


def test_the_defaults_are_those_of_hamis_own_file() -> None:
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "examples" / "hami" / "device-config.yaml"
        if path.exists():
            assert load(path) == DeviceConfig()
            return
    pytest.skip("shared/examples/hami/device-config.yaml is not beside the checkout")
