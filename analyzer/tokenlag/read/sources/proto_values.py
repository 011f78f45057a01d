"""Decoded OTLP protobuf values as the values that all sources share."""

from __future__ import annotations

from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue as ProtoValue

from tokenlag.read.sources.otlp_types import AnyValue, ArrayValue

MAX_DEPTH: Final = 8


def any_value(value: ProtoValue, depth: int = 0) -> AnyValue:
    """Returns a value; maps and bytes are never read, and come back empty."""
    which = value.WhichOneof("value")
    if which == "string_value":
        return AnyValue(string_value=value.string_value)
    if which == "int_value":
        return AnyValue(int_value=value.int_value)
    if which == "double_value":
        return AnyValue(double_value=value.double_value)
    if which == "bool_value":
        return AnyValue(bool_value=value.bool_value)
    if which == "array_value" and depth < MAX_DEPTH:
        items = [any_value(item, depth + 1) for item in value.array_value.values]
        return AnyValue(array_value=ArrayValue(items))
    return AnyValue()
