"""The reward of buying a product for a goal.

Invariant: equal to the original's, part by part; only the part of speech (`nouns`) may come from elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from rapidfuzz import fuzz, utils

from rollenv.envs.webshop.nouns import FormNouns, Nouns
from rollenv.envs.webshop.product import Product

MATCH = 85
"""Two texts match when their token-set ratio, rounded, is above this."""

# The first one that occurs anywhere in a text stands for it: the order decides ("light blue" is "blue").
_COLORS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
    camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
    crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
    indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
    multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
    violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLORS.split())

_DROPPED = dict.fromkeys(range(128, 256))


def normalize_color(text: str) -> str:
    """The first known colour that occurs in `text`, or `text` itself.

    >>> normalize_color("d1-blue"), normalize_color("46w x 30l")
    ('blue', '46w x 30l')
    """
    return next((color for color in COLORS if color in text), text)


@functools.lru_cache(maxsize=16384)
def _plain(text: str) -> str:
    return utils.default_process(text.translate(_DROPPED))


@functools.lru_cache(maxsize=65536)
def _alike(one: str, other: str) -> bool:
    """Whether two texts share their words, or nearly."""
    return round(fuzz.token_set_ratio(_plain(one), _plain(other))) > MATCH


def _matched_attributes(wanted: Iterable[str], product: Product) -> int:
    matched = 0
    for attribute in wanted:
        if any(_alike(own, attribute) for own in product.attributes) or (
            attribute in product.name.lower()
            or attribute in " ".join(product.bullet_points).lower()
            or attribute in product.description.lower()
        ):
            matched += 1
    return matched


def _matched_options(wanted: Any, chosen: Iterable[str]) -> int:
    """How many of the wanted options are alike to a chosen one.

    A synthetic goal's options are compared as the text of a (name, value) pair, because the original does so: the
    colour of such a pair is only seen when the value is exactly a colour.
    """
    if isinstance(wanted, Mapping):
        targets = [next((c for c in COLORS if c in pair), str(pair)) for pair in wanted.items()]
    else:
        targets = [normalize_color(option) for option in wanted]
    own = [normalize_color(option) for option in chosen]
    return sum(any(_alike(option, target) for option in own) for target in targets)


def type_parts(goal: Mapping[str, Any], product: Product, nouns: Nouns) -> dict[str, Any]:
    """How far the product is the kind of thing the goal asks for: `r_type`, and what it follows from."""
    query_match = product.query == goal["query"]
    category_match = len(_categories(product.product_category) & _categories(goal["product_category"])) >= 2
    wanted = nouns.of(goal["name"])
    title_score = len(set(nouns.of(product.name)) & set(wanted)) / len(wanted) if wanted else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    # The original's order: a title with nothing in common overrides a match.
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return {
        "r_type": r_type,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


def reward_parts(
    goal: Mapping[str, Any],
    product: Product,
    options: Mapping[str, str],
    price: float,
    nouns: Nouns | None = None,
) -> dict[str, Any]:
    """The reward and everything it is made of.

    Args:
        goal: `attributes`, `goal_options`, `price_upper`, `query`, `product_category`, `name`, as in
            `Goals.get`.
        product: the product bought.
        options: option name -> the value chosen.
        price: what the product costs, in dollars.
        nouns: finds the nouns of titles; without it, words are told by their form.

    Returns:
        `reward` in [0, 1]; `r_type`, `query_match`, `category_match`, `title_score`; `r_att` and
        `num_attr_matches`; `r_option` (None when the goal has no options) and `num_option_matches`; `r_price`;
        and the weights `w_att`, `w_option`, `w_price`.
    """
    n_wanted, n_options = len(goal["attributes"]), len(goal["goal_options"])
    count = n_wanted + n_options + 1
    attributes = _matched_attributes(goal["attributes"], product)
    matched = _matched_options(goal["goal_options"], options.values())
    cheap_enough = price <= goal["price_upper"]
    kind = type_parts(goal, product, nouns or _by_form())
    reward = (attributes + matched + cheap_enough) / count
    reward *= kind["r_type"]
    return {
        "reward": reward,
        **kind,
        "r_att": attributes / n_wanted if n_wanted else None,
        "num_attr_matches": attributes,
        "w_att": n_wanted / count,
        "r_option": matched / n_options if n_options else None,
        "num_option_matches": matched,
        "w_option": n_options / count,
        "r_price": cheap_enough,
        "w_price": 1 / count,
    }


@functools.cache
def _by_form() -> FormNouns:
    return FormNouns()
