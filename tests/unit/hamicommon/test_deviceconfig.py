"""HAMi's device-config.yaml is read as it stands; what is wrong in it is named."""

from pathlib import Path

import pytest
import yaml
from hamicommon.deviceconfig import DeviceConfig, NvidiaConfig, load, parse
from hamicommon.errors import InvalidRequest


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


def test_other_vendors_and_older_keys_are_ignored_with_a_note() -> None:
    config = parse({"nvidia": {"knownMigGeometries": []}, "hygon": {}, "vnpus": []})

    assert config.nvidia == NvidiaConfig()
    assert len(config.notes) == 2
    assert "hygon, vnpus" in config.notes[1]


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (None, "is empty"),
        ({}, "is empty"),
        ([], "is empty"),
        ({"nvdia": {}}, "nvdia: unknown block"),
        ({"nvidia": 1}, "nvidia: a mapping"),
        ({"nvidia": {"defaultGpuNum": 1}}, "nvidia.defaultGpuNum: unknown key; did you mean"),
        ({"nvidia": {"xyz": 1}}, "nvidia.xyz: unknown key$"),
        ({"nvidia": {"defaultMemory": "1"}}, "nvidia.defaultMemory is '1': a whole number"),
        ({"nvidia": {"defaultMemory": -1}}, "nvidia.defaultMemory is -1"),
        ({"nvidia": {"deviceSplitCount": True}}, "nvidia.deviceSplitCount is True"),
        ({"nvidia": {"overwriteEnv": "yes"}}, "nvidia.overwriteEnv is 'yes': true or false"),
        ({"nvidia": {"deviceCoreScaling": 0}}, "nvidia.deviceCoreScaling is 0: a number above 0"),
        ({"nvidia": {"runtimeClassName": []}}, "nvidia.runtimeClassName is"),
        ({"nvidia": {"migProfileAllowlist": 1}}, "nvidia.migProfileAllowlist is 1: a list"),
        ({"nvidia": {"migProfileAllowlist": [{}]}}, r"migProfileAllowlist\[0\]: the two keys"),
        (
            {"nvidia": {"migProfileAllowlist": [{"models": "A", "profiles": []}]}},
            r"migProfileAllowlist\[0\].models: a list of names",
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
    with pytest.raises(InvalidRequest, match="no readable YAML"):
        load(path)
    with pytest.raises(InvalidRequest, match="no readable YAML"):
        load(tmp_path / "missing.yaml")


def test_the_defaults_are_those_of_hamis_own_file() -> None:
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "examples" / "hami" / "device-config.yaml"
        if path.exists():
            assert load(path).nvidia == NvidiaConfig()
            return
    pytest.skip("shared/examples/hami/device-config.yaml is not beside the checkout")
