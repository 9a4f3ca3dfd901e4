"""The vendor of examples/directory-plugin/README.md, run as it is written there."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hami_node_agent.deviceplugin.registration import KubeletRegistration

from tests.contract.kubelet.plugin_kubelet import PluginKubelet
from tests.waiting import eventually

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[3] / "examples/directory-plugin/README.md"


async def test_the_vendor_of_the_page_works_before_a_kubelet() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    vendor: dict[str, Any] = {}
    exec(compile(code, PAGE, "exec"), vendor)
    with tempfile.TemporaryDirectory(prefix="hami-acme-") as made:
        folder = Path(made)
        for name in ("dev", "state/acme0", "sockets"):
            (folder / name).mkdir(parents=True)
        (folder / "dev/acme0").touch()
        state = folder / "state/acme0/state"
        state.write_text("ok\n")
        vendor["DEV"], vendor["STATE"] = folder / "dev", folder / "state"
        kubelet = PluginKubelet(folder / "sockets")
        await kubelet.start()
        plugin = vendor["AcmePlugin"]()
        served = KubeletRegistration(
            plugin,
            socket_dir=kubelet.sockets,
            socket_name="acme.sock",
            resource_name="acme.com/card",
        )
        tasks = [asyncio.create_task(plugin.watch()), asyncio.create_task(served.run())]
        try:
            await eventually(lambda: kubelet.registered == [("acme.com/card", "acme.sock")])
            async with kubelet.listening():
                await eventually(lambda: kubelet.lists == [{"acme0": "Healthy"}])
                state.write_text("broken\n")
                await eventually(lambda: kubelet.lists[-1] == {"acme0": "Unhealthy"})
                answer = await kubelet.allocate("acme0")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await kubelet.stop()

    assert dict(answer.envs) == {"ACME_VISIBLE": "acme0"}
    assert [(d.container_path, d.host_path) for d in answer.devices] == [
        ("/dev/acme0", f"{made}/dev/acme0")
    ]
