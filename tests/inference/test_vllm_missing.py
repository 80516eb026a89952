"""Without vLLM its engine is refused in one sentence, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import build  # noqa: E402

from rollenv.config.rollout import RolloutConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.rollout.setup import single_engine  # noqa: E402


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_the_refusal_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = RolloutConfig.model_validate({"engine": "vllm"})
    with pytest.raises(RollenvError, match=r"'vllm' cannot be loaded .*pip install 'rollenv\[vllm\]'.*engine=torch"):
        single_engine(build(), None, "cpu", config)
    assert list(tmp_path.iterdir()) == []
