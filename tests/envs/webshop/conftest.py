"""A small shop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def raw_product(asin: str, **changes: Any) -> dict[str, Any]:
    """A record in WebShop's format."""
    return {
        "asin": asin,
        "name": "Blue Wool Hat for Men",
        "full_description": "A warm hat.",
        "small_description": ["machine washable", "hand made"],
        "pricing": "$12.5",
        "images": ["http://shop/hat.jpg"],
        "customization_options": {"Color": [{"value": "Blue", "image": None}, {"value": "Red/White"}], "Size": None},
        "category": "fashion",
        "query": " Hats ",
        "product_category": "Clothing › Hats › Men",
        **changes,
    }


ITEMS = [
    raw_product("B000000001"),
    raw_product("B000000002", name="Red Cotton Scarf", pricing="$5 to $9", query="scarves", customization_options=""),
    raw_product("B000000001", name="a duplicate"),
    raw_product("nan"),
    raw_product("B00000000004", name="an asin that is too long"),
    raw_product("B000000003", name="Dear Gold Watch", pricing="$995.00", customization_options={"Fit": []}),
]
NOTES = {
    "B000000001": {
        "attributes": ["wool", "machine washable"],
        "instruction": "Find me hats",
        "instruction_attributes": ["wool", "hand made"],
    },
    "B000000002": {"attributes": ["soft"], "instruction": "Find me scarves", "instruction_attributes": ["soft"]},
    "B000000003": {"attributes": [], "instruction": "Find me watches", "instruction_attributes": ["gold"]},
}
HUMAN = {
    "B000000002": [
        {"instruction": "a red scarf.", "instruction_attributes": ["soft"], "instruction_options": ["red"]},
        {"instruction": "nothing to it", "instruction_attributes": [], "instruction_options": []},
    ]
}


@pytest.fixture(scope="session")
def make_shop(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a data folder from records."""

    def make(items: Any = ITEMS, notes: Any = NOTES, human: Any = HUMAN) -> Path:
        folder = tmp_path_factory.mktemp("shop")
        for name, content in (("items_shuffle", items), ("items_ins_v2", notes), ("items_human_ins", human)):
            if content is not None:
                (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def shop(make_shop: Callable[..., Path]) -> Path:
    """The small shop: three products that count, of six records."""
    return make_shop()
