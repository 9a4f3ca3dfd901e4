"""Log lines are JSON with their context, in their order, one write per turn of the event loop."""

import asyncio
import io
import json
import logging
from pathlib import Path

from hamicommon import telemetry
from hamicommon.logs import FIELDS, JsonFormatter, TurnHandler
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


def line(message: str, **extra: object) -> dict[str, object]:
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, message, (), None)
    record.__dict__.update(extra)
    return dict(json.loads(JsonFormatter("service").format(record)))


def test_a_log_line_carries_extra_fields_and_the_context() -> None:
    with telemetry.log_context(pod_uid="u", node="n"):
        inner = line("placed", cards=2)
    outer = line("later")

    assert inner["message"] == "placed"
    assert (inner["pod_uid"], inner["node"], inner["cards"]) == ("u", "n", 2)
    assert "pod_uid" not in outer


def test_a_value_that_is_no_json_is_written_as_text() -> None:
    assert line("x", path=Path("/a"))["path"] == "/a"


def test_a_number_of_more_than_64_bits_is_written_too() -> None:
    assert line("x", amount=2**80)["amount"] == 2**80


def test_all_fields_may_come_in_one_mapping() -> None:
    with telemetry.log_context(node="n"):
        written = line("admission", **{FIELDS: {"verdict": "denied", "trace_id": "t"}})

    assert (written["verdict"], written["trace_id"], written["node"]) == ("denied", "t", "n")


def test_a_line_names_the_current_trace() -> None:
    provider = TracerProvider()
    with provider.get_tracer("t").start_as_current_span("s"):
        span = trace.get_current_span().get_span_context()
        assert line("x")["trace_id"] == f"{span.trace_id:032x}"
    provider.shutdown()


class Writes(io.StringIO):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return super().write(text)


def log_of(stream: io.StringIO) -> logging.Logger:
    """A logger of its own, which nobody else configures."""
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(TurnHandler(stream))
    return logger


async def test_the_lines_of_one_turn_are_one_write_in_their_order() -> None:
    stream = Writes()
    logger = log_of(stream)
    logger.info("one")
    logger.info("two")
    assert stream.all == []

    await asyncio.sleep(0)
    assert stream.all == ["one\ntwo\n"]

    logger.info("three")
    await asyncio.sleep(0)
    assert stream.getvalue() == "one\ntwo\nthree\n"


async def test_a_warning_is_written_at_once_behind_what_waits() -> None:
    stream = Writes()
    logger = log_of(stream)
    logger.info("one")
    logger.warning("two")

    assert stream.getvalue() == "one\ntwo\n"


async def test_a_line_of_another_thread_waits_for_no_loop() -> None:
    stream = Writes()
    logger = log_of(stream)
    logger.info("one")
    await asyncio.to_thread(logger.info, "two")

    assert stream.getvalue() == "one\ntwo\n"


def test_lines_outside_of_a_loop_are_written_at_once() -> None:
    stream = Writes()
    log_of(stream).info("one")

    assert stream.getvalue() == "one\n"


def test_what_a_loop_left_behind_is_written_at_the_end_and_by_the_next_loop() -> None:
    stream = Writes()
    logger = log_of(stream)

    async def leave(text: str) -> None:
        logger.info(text)

    asyncio.run(leave("one"))
    asyncio.run(leave("two"))
    logger.handlers[0].flush()

    assert stream.getvalue() == "one\ntwo\n"


def test_a_line_that_no_stream_takes_does_not_end_its_writer(capsys) -> None:
    stream = io.StringIO()
    logger = log_of(stream)
    stream.close()

    logger.info("one")
    assert "ValueError" in capsys.readouterr().err
