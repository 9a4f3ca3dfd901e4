"""Answers of a driven program: one line of JSON each."""

import json
import sys
from typing import Any


def reply(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
