"""The measure of `make bench-webhook` is the webhook's own application with nothing to decide."""

import importlib.util
from pathlib import Path
from types import ModuleType

import httpx
from fastapi import APIRouter, FastAPI
from hami_webhook import __main__ as webhook_main
from hami_webhook import bootstrap
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.routes import create_app
from hami_webhook.service import ReviewService
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult
from hamicommon.k8s.types import Json

BENCH = Path(__file__).parents[3] / "bench" / "webhook"


def bench(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layers(app: FastAPI) -> list[str]:
    """The types of everything that a request goes through before its route."""
    stack, found = app.build_middleware_stack(), []
    while stack is not None:
        found.append(type(stack).__qualname__)
        stack = getattr(stack, "app", None)
    return found


def test_both_applications_are_made_alike() -> None:
    async def decide(pod: Json, about: AdmissionCircumstances) -> AdmissionResult:
        return AdmissionResult(allowed=True)

    admission = ReviewService(decide, WebhookInstruments(), "closed")
    webhook = create_app(admission, APIRouter(), max_body_bytes=100)
    bare = bench("bare_endpoint").create_app()

    assert layers(bare) == layers(webhook)
    assert [type(route) for route in bare.routes] == [
        type(route) for route in webhook.routes if getattr(route, "path", "") == "/webhook"
    ]


def test_both_are_run_by_the_same_function() -> None:
    module = bench("bare_endpoint")

    assert module.run is webhook_main.run
    assert module.serving is bootstrap.serving


async def test_it_reads_the_body_and_answers_two_bytes() -> None:
    read = 0

    async def body():
        nonlocal read
        for _ in range(3):
            read += 1
            yield b"x" * 1000

    app = bench("bare_endpoint").create_app()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://bare") as http:
        answer = await http.post("/bare", content=body())

    assert (answer.status_code, answer.content, read) == (200, b"ok", 3)
