"""Between the store's columns and plain arrays: NULL is NaN here, and goes back as NULL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenlag.store.connection import Store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Columns:
    """A query's columns, to be taken as the type that the maths wants."""

    def __init__(self, store: Store, sql: str, params: Sequence[Any] | None = None) -> None:
        self._columns = store.fetchnumpy(sql, params)
        first = next(iter(self._columns.values()), np.zeros(0))
        self.n_rows = len(first)

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return list(self._columns)

    def floats(self, name: str) -> Floats:
        """As doubles, NaN where NULL."""
        column = self._columns[name]
        if np.ma.isMaskedArray(column):
            column = np.ma.filled(column.astype(np.float64), np.nan)
        return np.asarray(column, dtype=np.float64)

    def ints(self, name: str, null: int = -1) -> Ints:
        """As integers, `null` where NULL."""
        column = self._columns[name]
        if np.ma.isMaskedArray(column):
            column = np.ma.filled(column, null)
        return np.asarray(column, dtype=np.int64)

    def bools(self, name: str) -> npt.NDArray[np.bool_]:
        """As booleans, False where NULL."""
        column = self._columns[name]
        if np.ma.isMaskedArray(column):
            column = np.ma.filled(column, False)
        return np.asarray(column, dtype=bool)

    def objects(self, name: str) -> npt.NDArray[np.object_]:
        """As Python objects, None where NULL."""
        column = self._columns[name]
        if np.ma.isMaskedArray(column):
            out = np.full(len(column), None, dtype=object)
            known = ~np.ma.getmaskarray(column)
            out[known] = np.asarray(column[known], dtype=object)
            return out
        return np.asarray(column, dtype=object)


def nullable(values: Floats) -> Any:
    """NaN and infinity as NULL."""
    return np.ma.masked_invalid(values)


def nullable_keys(values: Ints) -> Any:
    """Negative keys as NULL."""
    return np.ma.masked_less(values, 0)
