"""`rollenv report`, from evaluations to a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollenv.cli import main

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]


def test_a_report_of_two_evaluations_is_one_page_and_markdown(
    tmp_path: Path, temp_registry: object, capsys: pytest.CaptureFixture[str]
) -> None:
    for agent in ("random", "oracle"):
        assert (
            main(["eval", *IMPORT, "--env", "colours", "--agent", agent, "--out", str(tmp_path / "runs" / agent)]) == 0
        )
    out = tmp_path / "out" / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    page, text = out.read_text(), out.with_suffix(".md").read_text()
    assert "oracle is better" in page
    assert "oracle is better" in text
    assert text.index("| 1 | oracle") < text.index("| 2 | random")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none"], "there is no folder 'none'"),
        (["."], "'.' holds no run"),
        ([".", "--out", "report.pdf"], "such as report.html"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
