"""The generated store: a WebShop catalogue that ships as a program instead of as a download.

Invariant: `generate(seed)` depends on nothing but `seed`: not on hash seeds, the clock, or global generators.

The store speaks WebShop's own file format, so that one loader serves both. It is made of *families*: products of
one kind with the same attributes, which differ in price and in the option values they offer, beside families that
differ from them in one attribute. An agent can judge attributes and price in the list of hits (some products keep
one attribute for their Features page), and sees what is offered when it opens a product.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.envs.webshop import store_words as words
from rollenv.envs.webshop.store_words import Kind

Products = list[dict[str, Any]]
Attributes = dict[str, dict[str, Any]]
HumanInstructions = dict[str, list[dict[str, Any]]]

FILES = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
"""WebShop's names for the three files (products, attributes, human instructions)."""

FAMILIES_PER_KIND = 4
LONGEST_TITLE = 9
"""Words."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a member of a family is there for."""

    dearer: tuple[float, float]
    """Dollars over the family's base price, from and to."""
    goals: float = 0.05
    """Share that are goal products."""
    lacks: bool = False
    """Whether it has one attribute of the family less."""
    values: tuple[int, int] = (2, 4)
    """Values that it offers per option, from and to."""
    long: float = 0.06
    """Share with a long description, which ranks well."""


TARGETS = (Role((0, 6), goals=1.0, values=(3, 6)), Role((0, 12), goals=1.0, values=(3, 6)))
"""In every family."""
OTHERS = (
    Role((10, 28), goals=0.95, values=(2, 5)),
    Role((0, 12), goals=0.8, values=(2, 5)),
    Role((0, 9), values=(2, 2), long=0.8),
    Role((38, 55)),
    Role((0, 9), lacks=True),
)
"""One or two of these are in a family."""
RIVALS = {
    Role((46, 62), long=0.95): 46,
    Role((0, 9), lacks=True, long=0.95): 36,
    Role((0, 9), values=(2, 2), long=0.95): 18,
}
"""Two of one of these are in a family (weights): so the first hit of a search is often too dear, lacks an attribute,
or does not offer what is asked for."""
HUMAN_INSTRUCTIONS = 160
HIDDEN = 0.2
"""Share of products with three attributes and at most one option group whose title keeps an attribute back."""
ENDINGS = (0.99, 0.99, 0.49, 0.95, 0.75)
"""Cents of a price, drawn from."""


@dataclass(slots=True)
class Product:
    """One product before it is written in WebShop's format."""

    kind: Kind
    attributes: list[str]
    """All it has, in the kind's order; every one is named on the Features page."""
    hidden: list[str]
    """Those that the title does not name."""
    wanted: list[str]
    """What an instruction for this product asks for; empty when there is none."""
    asin: str = ""
    department: str = ""
    brand: str = ""
    price: tuple[float, ...] = ()
    """Dollars: one price, or the two ends of a range."""
    options: dict[str, list[str]] = field(default_factory=dict)
    """Key of PALETTES -> the values offered."""
    description: str = ""


def generate(seed: int = 0) -> tuple[Products, Attributes, HumanInstructions]:
    """The whole store in WebShop's file format: what `items_shuffle`, `items_ins_v2` and `items_human_ins` hold.

    Args:
        seed: another seed gives another store of the same kinds; 0 is the one that `rollenv.make("webshop")` plays.

    Returns:
        The products in their shuffled order; per asin its attributes and, for goal products, the synthetic
        instruction; per asin the human-style instructions.
    """
    rng = random.Random(f"rollenv webshop store {seed}")
    asins = _asins(rng)
    products: list[Product] = []
    for department, (_, kinds) in words.DEPARTMENTS.items():
        for kind in kinds:
            products += _kind_products(rng, department, kind, asins)
    rng.shuffle(products)
    catalogue = [_record(rng, product) for product in products]
    return catalogue, {p.asin: _attributes(p) for p in products}, _human(rng, products)


def write(folder: str | Path, seed: int = 0) -> list[Path]:
    """Saves the store as WebShop's three files, gzipped, into `folder` (made if needed); equal bytes for equal seeds.

    Returns:
        The paths written, in the order of `FILES`.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in zip(FILES, generate(seed), strict=True):
        path = folder / f"{name}.gz"
        path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        paths.append(path)
    return paths


# -- families ---------------------------------------------------------------------------------------------------


def _kind_products(rng: random.Random, department: str, kind: Kind, asins: list[str]) -> list[Product]:
    """All products of one kind: families whose attribute sets differ from each other, often in one attribute."""
    palettes = {option: _palette(rng, option) for option in kind.options}
    seen: list[list[str]] = []
    products: list[Product] = []
    for _ in range(FAMILIES_PER_KIND):
        core = _core(rng, kind, seen)
        seen.append(core)
        products += _family(rng, department, kind, core, palettes, asins)
    return products


def _palette(rng: random.Random, option: str) -> list[str]:
    """The option values that products of a kind draw from, in display order."""
    values = words.PALETTES[option]
    keep = min(len(values), 11)
    return sorted(rng.sample(values, keep), key=values.index)


def _core(rng: random.Random, kind: Kind, seen: list[list[str]]) -> list[str]:
    """The attributes of a new family: an earlier family's with one replaced, or a fresh draw of 2 or 3."""
    for _ in range(100):
        if seen and rng.random() < 0.65:
            core = list(rng.choice(seen))
            old = rng.choice(core)
            group = next(g for g in (kind.before, kind.having, kind.use) if old in g)
            core[core.index(old)] = rng.choice(group)
        else:
            core = rng.sample(kind.before, rng.choice((1, 1, 1, 2)))
            core += rng.sample(kind.having, rng.choice((0, 1, 1, 2)))
            core += rng.sample(kind.use, rng.choice((0, 1)))
        core = _ordered(kind, core)
        if 2 <= len(core) <= 3 and core not in seen and _title_words(kind, core) <= LONGEST_TITLE:
            return core
    raise AssertionError(f"no new family of {kind.noun}")


def _family(
    rng: random.Random,
    department: str,
    kind: Kind,
    core: list[str],
    palettes: dict[str, list[str]],
    asins: list[str],
) -> list[Product]:
    """Near-duplicates: the same attributes at different prices and with different option values."""
    rival = rng.choices(tuple(RIVALS), tuple(RIVALS.values()))[0]
    roles = [rival, rival, *TARGETS, *rng.sample(OTHERS, rng.choice((1, 1, 2, 2)))]
    groups = _groups(rng, kind)
    base = kind.price * rng.uniform(0.8, 1.25)
    products = []
    for brand, role in zip(rng.sample(words.BRANDS, len(roles)), roles, strict=True):
        missing = rng.choice([a for a in core if " " in a] or core) if role.lacks else ""
        product = _member(rng, kind, [a for a in core if a != missing], len(groups), role)
        product.asin, product.department, product.brand = asins.pop(), department, brand
        product.price = _price(rng, base + rng.uniform(*role.dearer))
        product.options = {g: _offered(rng, palettes[g], role.values) for g in groups}
        if rng.random() < role.long:
            product.description = _long_description(rng, product, palettes, missing)
        else:
            product.description = rng.choice(words.LEAN).format(brand=brand)
        products.append(product)
    return products


def _groups(rng: random.Random, kind: Kind) -> list[str]:
    """Which of the kind's option groups a family has: mostly one, often two."""
    count = rng.choices((0, 1, 2, 3), (4, 69, 24, 3))[0]
    return sorted(rng.sample(kind.options, min(count, len(kind.options))))


def _offered(rng: random.Random, palette: list[str], values: tuple[int, int]) -> list[str]:
    """Some values of the palette in its order, never all of it."""
    count = min(len(palette) - 1, rng.randint(*values))
    return sorted(rng.sample(palette, count), key=palette.index)


def _member(rng: random.Random, kind: Kind, core: list[str], groups: int, role: Role) -> Product:
    """One member's attributes: some have one more, some keep one for the Features page, some ask for fewer."""
    others = [a for a in (*kind.before, *kind.having, *kind.use) if a not in core]
    more = [rng.choice(others)] if not role.lacks and len(core) < 3 and rng.random() < 0.3 else []
    if _title_words(kind, core + more) > LONGEST_TITLE:
        more = []
    hides = len(core) > 2 and groups < 2 and rng.random() < HIDDEN
    wanted = rng.sample(core, len(core) - 1) if len(core) > 2 and rng.random() < 0.2 else core
    return Product(
        kind=kind,
        attributes=_ordered(kind, core + more),
        hidden=[rng.choice(core)] if hides else [],
        wanted=_ordered(kind, wanted) if rng.random() < role.goals else [],
    )


def _price(rng: random.Random, price: float) -> tuple[float, ...]:
    """Dollars with shop-like cents; now and then a range of less than ten dollars."""
    low = max(1, int(price)) + rng.choice(ENDINGS)
    if rng.random() < 0.06:
        return low, int(low) + rng.randint(2, 8) + rng.choice(ENDINGS)
    return (low,)


def _title_words(kind: Kind, attributes: list[str]) -> int:
    """Words of a title: the brand, the noun, the attributes and "for"."""
    return 1 + len(" ".join((kind.noun, *attributes)).split()) + any(a in kind.use for a in attributes)


def _ordered(kind: Kind, attributes: list[str]) -> list[str]:
    """Distinct attributes in the order the kind lists them."""
    return [a for a in (*kind.before, *kind.having, *kind.use) if a in attributes]


def _asins(rng: random.Random) -> list[str]:
    """Distinct ids of ten characters, as WebShop's."""
    return [f"B0{number:08d}" for number in rng.sample(range(10**8), 2000)]


# -- texts ------------------------------------------------------------------------------------------------------


def _parts(kind: Kind, attributes: list[str], comma: str = " ") -> tuple[str, str, str]:
    """The attributes that stand before the noun, follow "with", and follow "for"; each part joined by `comma`."""
    before, having, use = (comma.join(a for a in attributes if a in g) for g in (kind.before, kind.having, kind.use))
    return before, having, use


def _phrase(kind: Kind, attributes: list[str], comma: str = ", ") -> str:
    """ "slim, quiet fans with timer for kids": WebShop's synthetic form."""
    before, having, use = _parts(kind, attributes, comma)
    with_, for_ = f"with {having}" if having else "", f"for {use}" if use else ""
    return " ".join(part for part in (before, kind.noun, with_, for_) if part)


def _spoken(kind: Kind, attributes: list[str]) -> str:
    """ "fans for kids that are slim and quiet and have timer": another way to say it."""
    before, having, use = _parts(kind, attributes, " and ")
    for_ = f"for {use}" if use else ""
    that = " and ".join(f"{verb} {part}" for verb, part in (("are", before), ("have", having)) if part)
    return " ".join(part for part in (kind.noun, for_, f"that {that}" if that else "") if part)


def _title(rng: random.Random, product: Product) -> str:
    """Brand, attributes and kind in 3 to 9 words, every attribute literally but the hidden ones."""
    kind = product.kind
    before, having, use = _parts(kind, [a for a in product.attributes if a not in product.hidden])
    use = f"for {use}" if use else ""
    orders = ((before, kind.noun, having, use), (kind.noun, before, having, use), (having, before, kind.noun, use))
    return " ".join(part for part in (product.brand, *rng.choice(orders)) if part)


def _long_description(rng: random.Random, product: Product, palettes: dict[str, list[str]], missing: str = "") -> str:
    """A text that repeats the title's words, speaks of option values, offered or not, and in passing of `missing`."""
    noun = product.kind.noun
    sentences = [f"{noun} by {product.brand}"]
    sentences += [rng.choice(words.RICH).format(noun=noun, attribute=a) for a in product.attributes * 2]
    if " " in missing:
        sentences += [rng.choice(words.PASSING).format(word=word) for word in missing.split()]
    for option in product.options:
        for value in rng.sample(palettes[option], min(5, len(palettes[option]))):
            remarks = words.MATCHES if value in product.options[option] else (*words.MATCHES, words.LACKING)
            sentences.append(rng.choice(remarks).format(value=value))
    return ". ".join(sentences)


def _bullets(rng: random.Random, product: Product) -> list[str]:
    """The Features page: a line for each attribute, in random order."""
    lines = [f"{attribute}: {rng.choice(words.CLAIMS)}" for attribute in product.attributes]
    rng.shuffle(lines)
    return lines


def _record(rng: random.Random, product: Product) -> dict[str, Any]:
    """The product as `items_shuffle_1000.json` has it."""
    root = words.DEPARTMENTS[product.department][0]
    image = f"https://store.invalid/{product.asin}.jpg"
    customization: dict[str, Any] | str = {
        _option_name(option).title(): [
            {"is_selected": False, "is_available": True, "value": value, "image": None} for value in values
        ]
        for option, values in product.options.items()
    }
    return {
        "name": _title(rng, product),
        "full_description": product.description,
        "pricing": " to ".join(f"${price:.2f}" for price in product.price),
        "images": [image],
        "product_category": f"{root} › {product.kind.section} › {product.kind.noun.title()}",
        "average_rating": rng.choice(("", "", 3.9, 4.1, 4.3, 4.5, 4.6, 4.8)),
        "small_description": _bullets(rng, product),
        "customization_options": customization or "",
        "asin": product.asin,
        "category": product.department,
        "query": product.kind.noun,
        "page": rng.randint(1, 400),
    }


def _option_name(option: str) -> str:
    """The name of an option group on the page ("size" of "size=clothes")."""
    return option.partition("=")[0]


def _attributes(product: Product) -> dict[str, Any]:
    """The product's entry in `items_ins_v2_1000.json`."""
    entry: dict[str, Any] = {"attributes": product.attributes}
    if product.wanted:
        entry["instruction"] = f"Find me {_phrase(product.kind, product.wanted)}"
        entry["instruction_attributes"] = product.wanted
    return entry


def _human(rng: random.Random, products: list[Product]) -> HumanInstructions:
    """Instructions as people write them, for some of the goal products."""
    chosen = rng.sample([p for p in products if p.wanted and not p.hidden], HUMAN_INSTRUCTIONS)
    return {product.asin: [_human_entry(rng, product)] for product in chosen}


def _human_entry(rng: random.Random, product: Product) -> dict[str, Any]:
    picked = {_option_name(option): rng.choice(values) for option, values in product.options.items()}
    options = ", in " + ", ".join(v if k == "color" else f"{k} {v}" for k, v in picked.items()) if picked else ""
    kind, wanted = product.kind, product.wanted
    phrase = _phrase(kind, wanted, " and ") if rng.random() < 0.5 else _spoken(kind, wanted)
    instruction = rng.choice(words.HUMAN).format(phrase=phrase, options=options)
    return {
        "asin": product.asin,
        "instruction": instruction,
        "attributes": product.attributes,
        "options": [f"{_option_name(o)}: {v}" for o, values in product.options.items() for v in values],
        "instruction_attributes": product.wanted,
        "instruction_options": list(picked.values()),
    }
