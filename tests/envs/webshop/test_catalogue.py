from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop import catalogue as module
from rollenv.envs.webshop import load_catalogue, load_goals, search
from rollenv.envs.webshop.product import Product
from rollenv.errors import RollenvError

Shop = Callable[..., Path]


def test_records_that_the_original_skips_are_skipped(shop: Path) -> None:
    catalogue = load_catalogue(shop)
    assert [product.asin for product in catalogue] == ["B000000001", "B000000002", "B000000003"]
    assert catalogue.product("B000000002").name == "Red Cotton Scarf"
    with pytest.raises(RollenvError, match="has no product 'B9'"):
        catalogue.product("B9")


def test_a_record_is_cleaned_as_in_the_original(shop: Path) -> None:
    product = load_catalogue(shop).product(0)
    assert product.options == {"color": ["blue", "red | white"]}
    assert (product.prices, product.price_tag, product.query) == ([12.5], "$12.5", "hats")
    assert product.search_text == "blue wool hat for men a warm hat. machine washable color: blue, red | white"
    assert load_catalogue(shop).product(1).price_tag == "$5.0 to $9.0"


def test_one_catalogue_in_a_process_and_one_index_on_disk(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_catalogue(shop)
    assert load_catalogue(str(shop)) is first
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "build", None)  # a second build would fail
    again = load_catalogue(shop)
    assert again is not first
    assert again.sha256 == first.sha256
    assert search(again, "scarf") == search(first, "scarf")


def test_the_hash_is_of_the_content_not_of_the_files(shop: Path, make_shop: Shop, tmp_path: Path) -> None:
    for path in shop.glob("*.json"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert load_catalogue(tmp_path).sha256 == load_catalogue(shop).sha256
    assert load_catalogue(make_shop(notes={})).sha256 != load_catalogue(shop).sha256
    assert load_catalogue(shop, num_products=2).sha256 != load_catalogue(shop).sha256


def test_num_products_counts_records(shop: Path) -> None:
    assert [p.asin for p in load_catalogue(shop, num_products=5)] == ["B000000001", "B000000002"]
    with pytest.raises(RollenvError, match="num_products must be a positive number"):
        load_catalogue(shop, num_products=0)


def test_a_failed_build_leaves_nothing(make_shop: Shop) -> None:
    folder = make_shop()
    (folder / "items_shuffle.json").write_text('[{"asin": "B1"')
    with pytest.raises(RollenvError, match="ends in the middle"):
        load_catalogue(folder)
    assert not list(module.cache_root().glob(".building-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"pricing": "$cheap"}, r"'B1' has the price '\$cheap'"), ({"pricing": "9"}, "has the price '9'")],
)
def test_a_bad_product_is_named(make_shop: Shop, change: dict[str, Any], message: str) -> None:
    record = json.loads((make_shop() / "items_shuffle.json").read_text())[0] | {"asin": "B1"} | change
    with pytest.raises(RollenvError, match=message):
        load_catalogue(make_shop(items=[record]))
    del record["name"]
    record["pricing"] = ""
    with pytest.raises(RollenvError, match="'B1' has no 'name'"):
        load_catalogue(make_shop(items=[record]))


def test_a_damaged_cache_is_named(make_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_shop(human={"B000000001": []})
    kept = load_catalogue(folder).folder
    monkeypatch.setattr(module, "_loaded", {})
    (kept / "docs.npy").write_bytes(b"")
    with pytest.raises(RollenvError, match=r"cache in '.*' is damaged"):
        load_catalogue(folder)
    shutil.rmtree(kept)
    assert len(load_catalogue(folder)) == 3


def test_without_a_place_for_the_cache_it_works_all_the_same(
    make_shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "file"))
    assert len(load_catalogue(make_shop(human={"B000000002": []}))) == 3


def test_special_searches(shop: Path) -> None:
    catalogue = load_catalogue(shop)
    assert catalogue.having("query", "hats") == (0, 2)
    assert catalogue.having("category", "fashion") == (0, 1, 2)
    assert catalogue.having("attribute", "soft") == (1,)
    assert catalogue.having("attribute", "nothing") == ()


TEXT = st.text(max_size=20)


@given(
    st.builds(
        Product,
        *(TEXT, TEXT, TEXT, st.lists(TEXT), st.lists(st.floats(0, 1e9), min_size=1, max_size=2), TEXT, TEXT),
        *(st.dictionaries(TEXT, st.lists(TEXT)), st.dictionaries(TEXT, st.none() | TEXT), TEXT, TEXT, TEXT),
        *(st.lists(TEXT), st.none() | TEXT, st.lists(TEXT)),
        st.lists(st.tuples(TEXT, st.lists(TEXT), st.lists(TEXT))),
    )
)
def test_products_survive_their_encoding(product: Product) -> None:
    assert Product.decode(product.encode()) == product


# -- goals -------------------------------------------------------------------------------------------------


def test_goals_of_a_small_shop(shop: Path) -> None:
    goals = list(load_goals(load_catalogue(shop), "synthetic", 42))
    # Two for the hat's colours, one for the scarf; an option without values leaves the watch without goals.
    assert sorted(goal["asin"] for goal in goals) == ["B000000001", "B000000001", "B000000002"]
    hats = [goal for goal in goals if goal["asin"] == "B000000001"]
    assert {goal["goal_options"]["color"] for goal in hats} == {"blue", "red | white"}
    for goal in hats:
        assert goal["price_upper"] in (20.0, 30.0, 40.0, 50.0)
        assert goal["instruction_text"] == (
            f"Find me hats with color: {goal['goal_options']['color']}, and price lower than "
            f"{goal['price_upper']:.2f} dollars"
        )


def test_human_goals_without_attributes_do_not_count(shop: Path) -> None:
    (goal,) = load_goals(load_catalogue(shop), "human", 42)
    assert goal["instruction_text"].startswith("a red scarf, and price lower than ")
    assert (goal["goal_options"], goal["attributes"]) == (["red"], ["soft"])


def test_a_price_above_all_bounds_is_unbounded(make_shop: Shop) -> None:
    items = json.loads((make_shop() / "items_shuffle.json").read_text())
    items[0]["pricing"] = "$985"
    goals = load_goals(load_catalogue(make_shop(items=items)), "synthetic", 42)
    hat = next(goal for goal in goals if goal["asin"] == "B000000001")
    assert hat["price_upper"] == 1000000
    assert "price lower" not in hat["instruction_text"]


def test_the_price_seed_decides_prices_and_bounds(shop: Path) -> None:
    catalogue = load_catalogue(shop)
    prices = [load_goals(catalogue, "synthetic", seed).prices[1] for seed in (1, 1, 2)]
    assert prices[0] == prices[1] != prices[2]
    assert all(5 <= price <= 9 for price in prices)


def test_kept_goals_are_the_drawn_ones(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = load_catalogue(shop)
    drawn = list(load_goals(catalogue, "synthetic", 7))
    monkeypatch.setattr("rollenv.envs.webshop.goals._loaded", {})
    monkeypatch.setattr("rollenv.envs.webshop.goals._draw_prices", None)
    assert list(load_goals(catalogue, "synthetic", 7)) == drawn


def test_random_goals_follow_their_weights() -> None:
    catalogue = load_catalogue()
    goals = load_goals(catalogue)
    drawn = [goals.draw(np.random.default_rng(seed)) for seed in range(200)]
    assert min(drawn) >= 1500
    assert max(drawn) < len(goals)
    assert len(set(drawn)) > 150
