from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop import loading
from rollenv.envs.webshop.loading import JsonStream, find_files, fingerprint
from rollenv.errors import RollenvError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(st.lists(JSON), st.integers(1, 50), st.sampled_from([None, 1]), st.booleans())
def test_a_streamed_array_is_the_array(
    tmp_path_factory: pytest.TempPathFactory, value: list[Any], chunk: int, indent: int | None, ascii_only: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "streamed.json"
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    path.write_bytes(text.encode("utf-8", "replace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "CHUNK", chunk)
        assert list(JsonStream(path).items()) == json.loads(path.read_text(encoding="utf-8"))


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON), st.integers(1, 50))
def test_a_streamed_object_is_the_object(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "streamed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(value).encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "CHUNK", chunk)
        assert dict(JsonStream(path).pairs()) == value


def test_progress_adds_up_to_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(list(range(100_000))).encode()))
    told: list[int] = []
    assert sum(1 for _ in JsonStream(path, told.append).items()) == 100_000
    assert sum(told) == path.stat().st_size


@pytest.mark.parametrize("cut", [1, 20, 57])
def test_a_torn_file_is_named_with_the_byte(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "items.json"
    path.write_text(json.dumps([{"name": "hat", "n": [1, 2]}, {"name": "a long scarf"}, 12345678])[:cut])
    with pytest.raises(RollenvError, match=rf"items\.json' ends in the middle, at byte {cut};"):
        list(JsonStream(path).items())


def test_a_torn_gzip_is_named_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "items.json.gz"
    whole = gzip.compress(json.dumps([str(hash(n)) for n in range(9999)]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RollenvError, match=rf"items\.json\.gz' is torn at byte {len(whole) // 2}"):
        list(JsonStream(path).items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"a": 1} {"b": 2}]' + b" " * 99, r"not valid JSON near byte 10: expected ','"),
        (b'[{"a": nonsense}]' + b" " * 99, "not valid JSON near byte 1"),
        (b'{"a": 1}', r"expected '\['"),
        (b'["\xff\xfe"]' + b" " * 9, "not UTF-8 at byte 2"),
    ],
)
def test_what_is_not_json_is_named_with_the_byte(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(content)
    with pytest.raises(RollenvError, match=message):
        list(JsonStream(path).items())


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match="is not a folder"):
        find_files(tmp_path / "nowhere")
    with pytest.raises(RollenvError, match=r"no items_shuffle\.json or items_shuffle_1000\.json"):
        find_files(tmp_path)
    (tmp_path / "items_shuffle_1000.json.gz").touch()
    with pytest.raises(RollenvError, match=r"needs items_ins_v2_1000\.json"):
        find_files(tmp_path)


def test_the_full_catalogue_comes_first_and_human_instructions_may_be_missing(tmp_path: Path) -> None:
    for name in ("items_shuffle.json.gz", "items_shuffle_1000.json", "items_ins_v2.json", "items_ins_v2_1000.json"):
        (tmp_path / name).write_text(name)
    files = find_files(tmp_path)
    assert [path.name for path in files.present()] == ["items_shuffle.json.gz", "items_ins_v2.json"]
    before = fingerprint(files)
    (tmp_path / "items_ins_v2.json").write_text("other")
    assert fingerprint(files) != before
