from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest
from tokenlag.errors import TokenlagError
from tokenlag.store.connection import Store, sql_identifier, sql_literal, sql_string_list


def test_a_private_store_leaves_nothing_behind() -> None:
    with Store() as store:
        folder = store.path.parent
        assert folder.is_dir()
        assert store.scalar("select count(*) from requests") == 0
    assert not folder.exists()


def test_a_kept_store_can_be_opened_again_read_only() -> None:
    store = Store()
    store.insert("read_notes", {"dataset": [0], "kind": ["k"], "n": [3], "text": ["t"]})
    store.close(keep=True)
    with duckdb.connect(str(store.path), read_only=True) as again:
        assert again.execute("select dataset, kind, place, n from read_notes").fetchall() == [
            (0, "k", None, 3)
        ]
    store.discard()
    assert not store.path.parent.exists()


def test_a_given_path_is_kept_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    with Store(path) as store:
        store.insert("read_notes", {"dataset": [1], "kind": ["k"], "n": [1], "text": ["t"]})
    with Store(path) as store:
        assert store.scalar("select count(*) from read_notes") == 1


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    path.write_text("not a database, but long enough to look at" * 200)
    with pytest.raises(TokenlagError) as caught:
        Store(path)
    assert caught.value.place == str(path)


def test_insert_takes_arrays_lists_and_nulls() -> None:
    with Store() as store:
        store.execute("create table t (a bigint, b varchar, c double, d bigint[], e boolean)")
        store.insert(
            "t",
            {
                "e": [True, None, False],
                "a": np.array([1, 2, 3]),
                "c": np.ma.masked_array([0.5, 1.5, 2.5], mask=[False, True, False]),
                "b": ["x", None, "z"],
                "d": [[1, 2], None, [3, 4]],
            },
        )
        store.insert("t", {"a": [None, 4], "b": [None, None]})
        assert store.fetchall("select * from t order by a nulls last") == [
            (1, "x", 0.5, [1, 2], True),
            (2, None, None, None, None),
            (3, "z", 2.5, [3, 4], False),
            (4, None, None, None, None),
            (None, None, None, None, None),
        ]
        store.insert("t", {"a": []})
        assert store.scalar("select count(*) from t") == 5


def test_insert_refuses_what_is_no_table_of_columns() -> None:
    with Store() as store:
        with pytest.raises(TokenlagError, match="unequal length"):
            store.insert("read_notes", {"dataset": [0], "kind": []})
        with pytest.raises(TokenlagError, match="not a table name"):
            store.insert("read_notes; drop table requests", {"dataset": [0]})


def test_results_as_arrays() -> None:
    with Store() as store:
        found = store.fetchnumpy("select * from (values (1, 'a'), (null, 'b')) v(x, y)")
    assert found["y"].tolist() == ["a", "b"]
    assert found["x"].tolist() == [1, None]


def test_scripts_get_their_names_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_scripts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "good.sql").write_text("create table named as select ${WHO} as who, ${N} as n;")
    (package / "bad.sql").write_text("select nothing from nowhere;")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Store() as store:
        store.run_script("some_scripts", "good.sql", {"WHO": "it's", "N": 3})
        assert store.fetchall("select who, n from named") == [("it's", 3)]
        with pytest.raises(TokenlagError, match=r"\$\{WHO\} has no value"):
            store.run_script("some_scripts", "good.sql")
        with pytest.raises(TokenlagError) as caught:
            store.run_script("some_scripts", "bad.sql")
        assert caught.value.place == "some_scripts/bad.sql"


def test_a_memory_limit_is_kept_by_spilling() -> None:
    with Store(memory_limit="60MB", n_threads=1) as store:
        n_distinct = store.scalar(
            "select count(*) from (select i // 2 as k, string_agg(i::varchar) "
            "from range(3000000) r(i) group by k)"
        )
        assert n_distinct == 1_500_000


def test_quoting() -> None:
    assert sql_literal("a'b") == "'a''b'"
    assert sql_literal(7) == "7"
    assert sql_identifier('a"b') == '"a""b"'
    assert sql_string_list(["x", "y'"]) == "['x', 'y''']"


def test_only_the_store_imports_duckdb() -> None:
    package = Path(__file__).parents[2] / "analyzer" / "tokenlag"
    importers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if any(
            line.split("#")[0].strip().startswith(("import duckdb", "from duckdb"))
            for line in path.read_text(encoding="utf-8").splitlines()
        )
    }
    assert importers == {"store"}
