"""Trace files: whole after a crash at any point, rotated, under their cap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenlag_tracer import conventions as names
from tokenlag_tracer import files
from tokenlag_tracer.files import TraceFiles, remove_parts
from tokenlag_tracer.spans import Row

from tests.tracer.support import spans_in

RESOURCES = {0: {names.SERVICE_NAME: "s"}}


def rows(first: int, n: int) -> list[Row]:
    return [
        Row(
            1, number + 1, 0, names.SPAN_ENGINE_STEP, names.KIND_INTERNAL, number, number + 1,
            {names.STEP_INDEX: number, names.ENGINE_ID: f"é{number * 7919 % 1009}"}, False, 0,
        )
        for number in range(first, first + n)
    ]  # fmt: skip


def indexes(folder: Path) -> list[int]:
    return sorted(span.attributes[names.STEP_INDEX] for span in spans_in(folder))


def test_all_values_of_otlp(tmp_path: Path) -> None:
    row = Row(
        0xAB << 96, 0xCD, 0xEF, names.SPAN_REQUEST, names.KIND_SERVER, 5, 9,
        {names.FINISH_REASONS: ["stop"], names.REQUEST_STREAM: True, names.STEP_PREEMPTED: [1, 2],
         names.SAMPLE_WEIGHT: 2.5, names.REQUEST_MODEL: "m\u2028\"", names.PRIORITY: -3},
        True, 0,
    )  # fmt: skip
    TraceFiles(tmp_path, 1 << 20).write([row], RESOURCES)
    [span] = spans_in(tmp_path)
    assert span.attributes == row.attributes
    assert (span.trace, span.id, span.parent) == (
        "000000ab" + "0" * 24,
        "0" * 14 + "cd",
        "0" * 14 + "ef",
    )
    assert (span.kind, span.start, span.end, span.status) == (2, 5, 9, {"code": 2})
    assert span.resource == RESOURCES[0]
    assert span.scope == names.SCOPE_NAME


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    target = TraceFiles(tmp_path, 40_000)
    for number in range(40):
        assert target.write(rows(number * 100, 100), RESOURCES)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert sum(sizes) <= 40_000
        assert not any(path.suffix == ".part" for path in tmp_path.iterdir())
    found = indexes(tmp_path)
    assert found == list(range(found[0], 4000)), "the newest stay, without a hole"
    assert found[0] > 0
    assert len(list(tmp_path.iterdir())) > 1


def test_what_is_not_this_tracers_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "otel-collector.jsonl.gz"
    other.write_bytes(b"x" * 100_000)
    target = TraceFiles(tmp_path, 20_000)
    for number in range(10):
        target.write(rows(number * 100, 100), RESOURCES)
    assert other.exists()


class Crash(BaseException):
    """What ends a process: nothing after it runs."""


@pytest.mark.parametrize("call", ["open", "write", "replace"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_crash_at_any_point_leaves_whole_files(
    call: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TraceFiles(tmp_path, 1 << 20)
    target.write(rows(0, 50), RESOURCES)
    plain_open = Path.open

    class Torn:
        def __init__(self, path: Path) -> None:
            self.file = plain_open(path, "wb")

        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def writelines(self, parts: list[bytes]) -> None:
            data = b"".join(parts)
            self.file.write(data[: int(len(data) * share)])
            self.file.flush()
            raise Crash

    def crash(*_: object) -> None:
        raise Crash

    if call == "write":
        monkeypatch.setattr(Path, "open", lambda path, mode: Torn(path))
    else:
        monkeypatch.setattr(Path, call, crash)
    with pytest.raises(Crash):
        target.write(rows(50, 50), RESOURCES)
    monkeypatch.undo()
    assert indexes(tmp_path) == list(range(50))
    remove_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    TraceFiles(tmp_path, 1 << 20).write(rows(100, 10), RESOURCES)
    assert indexes(tmp_path)[-1] == 109


def test_parts_of_a_living_writer_are_left(tmp_path: Path) -> None:
    alive = tmp_path / f".tokenlag-20260101T000000Z-{os.getppid()}-0001.jsonl.gz.part"
    dead = tmp_path / ".tokenlag-20260101T000000Z-99999999-0001.jsonl.gz.part"
    for path in (alive, dead):
        path.write_bytes(b"x")
    remove_parts(tmp_path)
    assert alive.exists()
    assert not dead.exists()


def test_a_full_disk_makes_room_of_what_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with less room than the cap: the oldest files give way, then spans are lost."""
    room = 12_000
    monkeypatch.setattr(files, "SEGMENT_BYTES", 3_000)
    plain_open = Path.open

    class Small:
        def __init__(self, path: Path) -> None:
            self.file = plain_open(path, "wb")

        def __enter__(self) -> Small:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def writelines(self, parts: list[bytes]) -> None:
            used = sum(path.stat().st_size for path in tmp_path.iterdir())
            data = b"".join(parts)
            self.file.write(data[: max(0, room - used)])
            if used + len(data) > room:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: Small(path))
    target = TraceFiles(tmp_path, 16_000)
    outcomes = [target.write(rows(number * 50, 50), RESOURCES) for number in range(60)]
    monkeypatch.undo()
    found = indexes(tmp_path)
    assert found
    assert found[-1] >= 55 * 50, "what is new is kept"
    kept = {index // 50 for index in found}
    assert all(outcomes[number] for number in kept)


def test_a_folder_that_cannot_be_written_is_no_crash(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not TraceFiles(blocked / "traces", 1 << 20).write(rows(0, 1), RESOURCES)
