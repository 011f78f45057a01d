"""Declared values out of attributes, many of one key at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tokenlag.read.sources.otlp_series import INT_SEPARATOR, typed
from tokenlag.read.sources.otlp_types import KeyValue
from tokenlag.read.sources.otlp_values import CONVERTERS, is_empty


class Values:
    """Takes declared values out of attributes, and counts those that are not of their type.

    Args:
        declared: the keys that are kept, with their types.
    """

    def __init__(self, declared: Mapping[str, str]) -> None:
        self.declared = dict(declared)
        self.unconvertible: Counter[str] = Counter()

    def of(self, column: Sequence[KeyValue], value_type: str) -> list[Any]:
        """Returns one key's values, as `otlp_series.typed` wants them."""
        taken: list[Any]
        if value_type == "int":
            taken = [item.value.int_value for item in column]
        elif value_type == "str":
            taken = [item.value.string_value for item in column]
        elif value_type == "float":
            taken = [item.value.double_value for item in column]
        elif value_type == "bool":
            taken = [item.value.bool_value for item in column]
        elif value_type == "int[]":
            try:
                return [
                    INT_SEPARATOR.join([one.int_value for one in item.value.array_value.values])  # type: ignore[union-attr,misc]
                    for item in column
                ]
            except (AttributeError, TypeError):  # some are no arrays of decimal text
                return [self.convert(item, value_type) for item in column]
        else:
            try:
                taken = [
                    [one.string_value for one in item.value.array_value.values]  # type: ignore[union-attr]
                    for item in column
                ]
            except (AttributeError, TypeError):  # some are no arrays
                return [self.convert(item, value_type) for item in column]
            if any(None in texts for texts in taken):
                return [self.convert(item, value_type) for item in column]
            return taken
        # Truth is cheaper to ask than equality.
        if not all(taken) and None in taken:  # some came in another field than their type's
            for index, value in enumerate(taken):
                if value is None:
                    taken[index] = self.convert(column[index], value_type)
        return taken

    def convert(self, item: KeyValue, value_type: str) -> Any:
        """Returns one value, in the same form."""
        value = CONVERTERS[value_type](item.value)
        if value is None:
            if not is_empty(item.value):
                self.unconvertible[item.key] += 1
        elif value_type == "int[]" and isinstance(value, list):
            return INT_SEPARATOR.join(map(str, value))
        return value

    def series(self, key: str, values: list[Any]) -> pl.Series:
        """Returns the column of a declared key."""
        column, n_lost = typed(key, self.declared[key], values)
        if n_lost:
            self.unconvertible[key] += n_lost
        return column
