"""OTLP over gRPC, where `grpcio` is installed (extra `grpc`)."""

from __future__ import annotations

from concurrent import futures
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tokenlag.collect.http import COMMIT_S, MAX_BODY_BYTES
from tokenlag.collect.intake import BusyError, Intake
from tokenlag.collect.rows import RefusedError, looked_at
from tokenlag.errors import UsageError

SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
N_THREADS: Final = 32  # calls that wait for the disk at once


def serve(address: str, intake: Intake) -> tuple[Any, int]:
    """Starts to listen; returns the server, to be stopped with `stop(grace)`, and its port.

    Raises:
        UsageError: `grpcio` is not installed, or the address cannot be had.
    """
    try:
        import grpc
    except ImportError:
        raise UsageError(
            "OTLP over gRPC needs grpcio", hint="pip install 'tokenlag[grpc]'"
        ) from None

    def export(body: bytes, context: Any) -> ExportTraceServiceResponse:
        try:
            intake.offer(looked_at(body, is_json=False)).result(COMMIT_S)
        except RefusedError as error:
            intake.refuse(str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except BusyError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except FutureTimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the disk is slow")
        return ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=None,  # bytes as they are: they are parsed once
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.server(
        futures.ThreadPoolExecutor(N_THREADS),
        handlers=[grpc.method_handlers_generic_handler(SERVICE, {"Export": handler})],
        options=[("grpc.max_receive_message_length", MAX_BODY_BYTES), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=4 * N_THREADS,
        compression=None,
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise UsageError("cannot listen there", place=address, hint="--grpc HOST:PORT")
    server.start()
    return server, int(port)
