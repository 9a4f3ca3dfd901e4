"""gRPC failures in the text in which a kubelet reports them."""

from __future__ import annotations

import grpc

_GO_NAMES = {grpc.StatusCode.CANCELLED: "Canceled"}


def describe(error: grpc.aio.AioRpcError) -> str:
    """`rpc error: code = Unknown desc = text`, as Go prints a status."""
    code = error.code()
    name = _GO_NAMES.get(code) or "".join(part.capitalize() for part in code.name.split("_"))
    late = code is grpc.StatusCode.DEADLINE_EXCEEDED
    text = "context deadline exceeded" if late else error.details() or ""
    return f"rpc error: code = {name} desc = {text}"
