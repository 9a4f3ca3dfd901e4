"""Log lines are JSON with their context, in their order, one write per turn of the event loop."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon import telemetry
from hamicommon.telemetry.logs import JsonFormatter, LineLogger, TurnHandler
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


@pytest.fixture
def root_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    """What the process's only handler writes to."""
    stream = Writes()
    handler = TurnHandler(stream)
    handler.setFormatter(JsonFormatter("service"))
    monkeypatch.setattr(logging.root, "handlers", [handler])
    level = logging.root.level
    logging.root.setLevel(logging.INFO)
    yield stream
    logging.root.setLevel(level)


def test_a_line_without_a_record_is_like_the_record_of_it(root_stream: Writes) -> None:
    fields = {"verdict": "denied", "trace_id": "t", "amount": 2**80}
    with telemetry.log_context(node="n"):
        LineLogger("t.audit").info("admission", fields)
        logging.getLogger("t.audit").info("admission", extra=fields)

    straight, recorded = map(json.loads, root_stream.getvalue().splitlines())
    assert straight.pop("time")[:-9] <= recorded.pop("time")
    assert straight == recorded
    assert (straight["node"], straight["logger"], straight["level"]) == ("n", "t.audit", "INFO")


async def test_lines_with_and_without_a_record_keep_their_order(root_stream: Writes) -> None:
    LineLogger("t.audit").info("one", {})
    logging.getLogger("t.other").info("two")
    LineLogger("t.audit").info("three", {})
    await asyncio.sleep(0)

    assert [json.loads(text)["message"] for text in root_stream.getvalue().splitlines()] == [
        "one",
        "two",
        "three",
    ]
    assert len(root_stream.all) == 1


def test_a_level_that_hides_a_line_hides_it_without_a_record_too(root_stream: Writes) -> None:
    logging.getLogger("t.hidden").setLevel(logging.WARNING)
    LineLogger("t.hidden").info("one", {})

    assert root_stream.getvalue() == ""


def test_where_somebody_else_listens_a_line_is_a_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    LineLogger("t.audit").info("admission", {"verdict": "denied"})

    assert [record.__dict__["verdict"] for record in caplog.records] == ["denied"]


def test_a_line_that_can_not_be_written_straight_does_not_end_its_writer(
    root_stream: Writes, capsys: pytest.CaptureFixture[str]
) -> None:
    root_stream.close()
    LineLogger("t.audit").info("one", {})

    assert "ValueError" in capsys.readouterr().err


def test_no_field_of_a_line_is_longer_than_its_bound() -> None:
    huge = "x" * 1_000_000
    line = JsonFormatter("service").line(0.0, "INFO", "logger", huge, {"error": huge, "n": 1})

    assert len(line) < 3000
    assert json.loads(line)["error"].endswith("...")
