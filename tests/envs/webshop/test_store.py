"""The generated store: format, determinism, its numbers, and that it is hard and fair in the ways it promises."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rapidfuzz import fuzz

import rollenv
from rollenv.envs.webshop import store, store_words
from rollenv.envs.webshop.store_words import DEPARTMENTS, PALETTES, Kind
from rollenv.tasks import canonical_json

SHA256 = "fb0127850e8e8fd7d8c025207a17cab2f7aa12e5cfa49477d93ada2b9a7af72e"
"""Of `generate()`. A change of the store changes every result made on it: change this only on purpose."""

KINDS = [kind for _, kinds in DEPARTMENTS.values() for kind in kinds]


@pytest.fixture(scope="module")
def generated() -> tuple[store.Products, store.Attributes, store.HumanInstructions]:
    return store.generate()


@pytest.fixture(scope="module")
def env() -> Any:
    env = rollenv.make("webshop")
    yield env
    env.close()


def attributes_of(kind: Kind) -> tuple[str, ...]:
    return (*kind.before, *kind.having, *kind.use)


def digest(content: Any) -> str:
    return hashlib.sha256(canonical_json(list(content))).hexdigest()


# -- determinism ------------------------------------------------------------------------------------------------


def test_the_store_is_frozen(generated: Any) -> None:
    assert digest(generated) == SHA256
    assert digest(store.generate(0)) == SHA256


def test_another_seed_gives_another_store(generated: Any) -> None:
    other = store.generate(1)
    assert digest(other) != SHA256
    assert {p["query"] for p in other[0]} == {p["query"] for p in generated[0]}


def test_hash_seeds_do_not_matter() -> None:
    code = (
        "import hashlib; from rollenv.envs.webshop import store; from rollenv.tasks import canonical_json;"
        "print(hashlib.sha256(canonical_json(list(store.generate()))).hexdigest())"
    )
    for seed in ("0", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == SHA256


def test_written_files_are_equal_and_hold_the_same(tmp_path: Path, generated: Any) -> None:
    first, second = store.write(tmp_path / "a"), store.write(tmp_path / "b" / "c")
    assert [path.name for path in first] == [f"{name}.gz" for name in store.FILES]
    for one, other, content in zip(first, second, generated, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert json.loads(gzip.decompress(one.read_bytes())) == content


def test_the_written_folder_is_the_generated_store(tmp_path: Path, env: Any) -> None:
    store.write(tmp_path)
    read = rollenv.make("webshop", data=str(tmp_path))
    ids = env.tasks.ids("test")[:20]
    assert read.tasks.ids("test")[:20] == ids
    for task in ids:
        assert read.reset(options={"task": task})[0] == env.reset(options={"task": task})[0]
    read.close()


# -- format -----------------------------------------------------------------------------------------------------


def test_products_look_like_the_real_file(generated: Any, shared_data: Callable[[str], Path]) -> None:
    real = json.loads(gzip.decompress(shared_data("webshop/items_shuffle_1000.json.gz").read_bytes()))
    types: dict[str, set[type]] = {}
    for product in real:
        for key, value in product.items():
            types.setdefault(key, set()).add(type(value))
    for product in generated[0]:
        assert set(product) <= set(types)
        assert all(type(value) in types[key] for key, value in product.items())
    always = {key for key in types if all(key in product for product in real)}
    assert all(always <= set(product) for product in generated[0])


def test_products_are_what_the_loader_reads(generated: Any) -> None:
    products, attributes, human = generated
    asins = [p["asin"] for p in products]
    assert len(set(asins)) == len(asins)
    assert set(attributes) == set(asins)
    assert set(human) <= set(asins)
    for product in products:
        assert len(product["asin"]) == 10
        assert re.fullmatch(r"\$\d+\.\d\d( to \$\d+\.\d\d)?", product["pricing"])
        assert product["product_category"].count(" › ") == 2
        assert product["query"] in product["name"]
        for values in (product["customization_options"] or {}).values():
            names = [entry["value"] for entry in values]
            assert 2 <= len(names) <= 6
            assert len(set(names)) == len(names)


def test_instructions_have_the_synthetic_form(generated: Any) -> None:
    products, attributes, _ = generated
    queries = {p["asin"]: p["query"] for p in products}
    for asin, entry in attributes.items():
        assert entry["attributes"]
        if "instruction" in entry:
            assert entry["instruction"].startswith("Find me ")
            assert queries[asin] in entry["instruction"]
            assert set(entry["instruction_attributes"]) <= set(entry["attributes"])
            assert all(attribute in entry["instruction"] for attribute in entry["instruction_attributes"])


def test_human_instructions_have_the_real_keys(generated: Any, shared_data: Callable[[str], Path]) -> None:
    real = json.loads(gzip.decompress(shared_data("webshop/items_human_ins.json.gz").read_bytes()))
    keys = set(next(iter(real.values()))[0])
    assert 50 <= len(generated[2]) <= 200
    for asin, entries in generated[2].items():
        for entry in entries:
            assert set(entry) == keys
            assert entry["asin"] == asin
            assert all(attribute in entry["instruction"] for attribute in entry["instruction_attributes"])
            assert all(option in entry["instruction"] for option in entry["instruction_options"])


# -- numbers ----------------------------------------------------------------------------------------------------


def test_size(generated: Any, env: Any) -> None:
    products = generated[0]
    assert 1000 <= len(products) <= 1500
    assert len({p["category"] for p in products}) >= 12
    assert all(len({p["query"] for p in products if p["category"] == d}) >= 4 for d in DEPARTMENTS)
    goals = sum(len(env.tasks.ids(split)) for split in ("test", "eval", "train"))
    assert 4000 <= goals <= 8000
    tasks = [env.tasks.get(task).data for task in env.tasks.ids("train")]
    by_options = Counter(len(task["goal_options"]) for task in tasks)
    assert by_options[1] + by_options[2] > 0.9 * len(tasks)
    assert by_options[1] > 0.35 * len(tasks)
    assert by_options[2] > 0.35 * len(tasks)
    assert all(task["price_upper"] < 1000 for task in tasks)


def test_language_is_small(generated: Any) -> None:
    products, attributes, human = generated
    texts = [json.dumps([p["name"], p["full_description"], p["small_description"], p["query"]]) for p in products]
    texts += [value for p in products for value in re.findall(r'"value": "([^"]*)"', json.dumps(p))]
    texts += [entry.get("instruction", "") for entry in attributes.values()]
    texts += [entry["instruction"] for entries in human.values() for entry in entries]
    vocabulary = {word for text in texts for word in re.findall(r"[a-z]+", text.lower())}
    assert 600 <= len(vocabulary) <= 1000
    lengths = [len(p["name"].split()) for p in products]
    assert max(lengths) <= 9
    assert 4 <= sum(lengths) / len(lengths) <= 8


def test_prices_have_mostly_two_digits(generated: Any) -> None:
    prices = [float(price) for p in generated[0] for price in re.findall(r"\d+\.\d\d", p["pricing"])]
    assert sum(5 <= price < 100 for price in prices) > 0.97 * len(prices)
    assert any("to" in p["pricing"] for p in generated[0])


def test_titles_name_the_attributes_of_most_goals(generated: Any) -> None:
    products, attributes, _ = generated
    titles = {p["asin"]: p["name"] for p in products}
    goals = [(asin, e["instruction_attributes"]) for asin, e in attributes.items() if "instruction" in e]
    shown = [all(attribute in titles[asin] for attribute in wanted) for asin, wanted in goals]
    assert 0.85 < sum(shown) / len(shown) < 1.0


def test_features_pages_name_every_attribute_and_no_other(generated: Any) -> None:
    products, attributes, _ = generated
    kinds = {kind.noun: kind for kind in KINDS}
    for product in products:
        pages = " | ".join((product["name"], product["full_description"], *product["small_description"]))
        mine = attributes[product["asin"]]["attributes"]
        assert all(any(line.startswith(a) for line in product["small_description"]) for a in mine)
        others = set(attributes_of(kinds[product["query"]])) - set(mine)
        assert not [attribute for attribute in others if attribute in pages], product["asin"]


# -- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_attributes_cannot_be_confused(kind: Kind) -> None:
    attributes = attributes_of(kind)
    assert len(set(attributes)) == len(attributes)
    for one, other in itertools.permutations(attributes, 2):
        assert fuzz.token_set_ratio(one, other) <= 85, (one, other)
        assert one not in other
    for attribute in attributes:
        assert attribute not in kind.noun
        for two in itertools.combinations([a for a in attributes if a != attribute], 2):
            assert not set(attribute.split()) <= set(f"{' '.join(two)} {kind.noun}".split()), (attribute, two)
    own = {word for attribute in attributes for word in attribute.split()} | set(kind.noun.split())
    values = [value for option in kind.options for value in PALETTES[option]]
    assert len(set(values)) == len(values), "a click on it could mean two options"
    for option in kind.options:
        assert not [v for v in PALETTES[option] if set(v.split()) & own], "an option value reads like an attribute"


def test_filler_contains_no_attribute() -> None:
    filler = " ".join(
        (
            *store_words.BRANDS,
            *store_words.LEAN,
            *store_words.RICH,
            *store_words.MATCHES,
            *store_words.PASSING,
            *store_words.CLAIMS,
            store_words.LACKING,
            *(value for values in PALETTES.values() for value in values),
        )
    )
    assert not [a for kind in KINDS for a in attributes_of(kind) if a in filler]


@pytest.mark.parametrize("option", PALETTES)
def test_only_the_asked_value_counts_in_the_reward(option: str) -> None:
    """The reward replaces a value by the first colour inside it and compares loosely: no value falls into that."""
    from rollenv.envs.webshop import normalize_color

    name = option.partition("=")[0]
    for wanted, chosen in itertools.product(PALETTES[option], repeat=2):
        synthetic = fuzz.token_set_ratio(normalize_color(chosen), f"{name} {wanted}")
        human = fuzz.token_set_ratio(normalize_color(chosen), normalize_color(wanted))
        assert (synthetic > 85) == (human > 85) == (wanted == chosen), (wanted, chosen)


# -- difficulty -------------------------------------------------------------------------------------------------


def options_of(observation: str, info: dict[str, Any], task: dict[str, Any]) -> list[str]:
    return [value for value in task["goal_options"].values() if value in info["available_actions"]["clickables"]]


def buy(env: Any, task: str, asin: str) -> float:
    """Reward of searching the instruction, then buying `asin` with the options as far as offered."""
    data = env.tasks.get(task).data
    env.reset(options={"task": task})
    env.step(f"search[{data['instruction_text']}]")
    observation, _, _, _, info = env.step(f"click[{asin}]")
    for value in options_of(observation, info, data):
        env.step(f"click[{value}]")
    return float(env.step("click[buy now]")[1])


def hits_of(env: Any, task: str) -> list[str]:
    env.reset(options={"task": task})
    info = env.step(f"search[{env.tasks.get(task).data['instruction_text']}]")[4]
    return [label for label in info["available_actions"]["clickables"] if re.fullmatch(r"b0\d{8}", label)]


def test_the_first_hit_is_rarely_right(env: Any) -> None:
    tasks = env.tasks.ids("test")
    right = sum(buy(env, task, hits_of(env, task)[0]) == 1.0 for task in tasks)
    print(f"\nnaive policy: {right / len(tasks):.1%} of {len(tasks)}")
    assert 0.15 <= right / len(tasks) <= 0.30


def test_the_first_page_holds_a_right_product(env: Any) -> None:
    tasks = env.tasks.ids("test")[::5]
    found = sum(any(buy(env, task, asin) == 1.0 for asin in hits_of(env, task)) for task in tasks)
    print(f"\nright product on page 1: {found / len(tasks):.1%} of {len(tasks)}")
    assert found / len(tasks) >= 0.95


def test_the_goal_product_itself_earns_one(env: Any) -> None:
    """Every goal can be reached: the product it was made from, reached through the shop, is worth 1."""
    for split in ("test", "eval", "train"):
        for task in env.tasks.ids(split)[:: 1 if split == "test" else 10]:
            data = env.tasks.get(task).data
            asin, found = data["asin"].lower(), False
            env.reset(options={"task": task})
            info = env.step(f"search[{data['instruction_text']}]")[4]
            for _ in range(5):
                found = asin in info["available_actions"]["clickables"]
                if found:
                    break
                info = env.step("click[next >]")[4]
            assert found, task
            observation, _, _, _, info = env.step(f"click[{asin}]")
            values = options_of(observation, info, data)
            assert len(values) == len(data["goal_options"])
            for value in values:
                env.step(f"click[{value}]")
            assert env.step("click[buy now]")[1] == 1.0, task
