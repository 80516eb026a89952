"""Without vLLM its engine is refused in one sentence, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import build  # noqa: E402

from rollenv.config.train import RolloutConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.inference.buckets import Place  # noqa: E402
from rollenv.inference.vllm_worker import from_wire, to_wire  # noqa: E402
from rollenv.rollout.setup import single_engine  # noqa: E402


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_the_refusal_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = RolloutConfig.model_validate({"engine": "vllm"})
    with pytest.raises(RollenvError, match=r"'vllm' cannot be loaded .*pip install 'rollenv\[vllm\]'.*engine=torch"):
        single_engine(build(), None, "cpu", config)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_survives_as_plain_values() -> None:
    manifest = (Place("w", torch.bfloat16, (2, 3), 0, 64), Place("b", torch.float32, (), 0, 128))
    wire = to_wire(manifest)
    assert from_wire(wire) == manifest
    assert all(type(value) in (str, int, list) for row in wire for value in row)
