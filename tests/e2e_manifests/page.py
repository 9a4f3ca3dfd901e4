"""The commands of a page, as its reader types them."""

import re
import shlex

from tests.e2e_manifests.pod_processes import PROJECT

PAGE = PROJECT / "docs" / "operations.md"


def commands(heading: str) -> list[list[str]]:
    """Return the commands of the first shell block under that heading, one for each line."""
    text = PAGE.read_text()
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(?:(?!^#)[^`]|`(?!``))*?^```sh\n(.*?)^```",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    assert found is not None, f"{PAGE.name}: no commands under {heading!r}"
    lines = found[1].replace("\\\n", " ").splitlines()
    return [argv for line in lines if (argv := shlex.split(line, comments=True))]
