"""The words of the generated store: departments, kinds of product, attributes, options, brands and filler.

The kinds themselves stand in `store_kinds.txt`, beside this file.

Everything here was invented for rollenv. The language is small on purpose (under a thousand distinct words), and
it keeps these rules, which `tests/envs/webshop/test_store.py` checks:

- within a kind, the words of one attribute are never covered by the kind's name and two other attributes, so a
  title can be judged word by word;
- two attributes of one kind, and two values of one option, are never alike in the reward's fuzzy sense;
- no filler contains an attribute, so a page names exactly the attributes its product has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of product, as a shopper would name it."""

    noun: str
    """What is sold: the query field, and literally part of every title."""
    section: str
    """Second level of the category path (the department is the first, the noun the third)."""
    before: tuple[str, ...]
    """Attributes that stand before the noun ("wireless headphones")."""
    having: tuple[str, ...]
    """Attributes that follow "with" ("headphones with deep bass")."""
    use: tuple[str, ...]
    """Attributes that follow "for" ("headphones for travel")."""
    options: tuple[str, ...]
    """Option groups as `name` or `name=palette`, keys of PALETTES."""
    price: int
    """Dollars that the cheapest products of this kind are around."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _departments(table: str) -> dict[str, tuple[str, tuple[Kind, ...]]]:
    """Reads `store_kinds.txt`: `[department | root]` lines, each followed by its kinds, one a line."""
    departments: dict[str, tuple[str, tuple[Kind, ...]]] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("[]").split("|")]
        if line.startswith("["):
            department, root = cells
            departments[department] = (root, ())
        elif line and not line.startswith("#"):
            noun, section, before, having, use, options, price = cells
            kind = Kind(noun, section, _split(before), _split(having), _split(use), _split(options), int(price))
            departments[department] = (root, (*departments[department][1], kind))
    return departments


DEPARTMENTS = _departments((Path(__file__).parent / "store_kinds.txt").read_text(encoding="utf-8"))
"""Department (the `category` field) -> its name in category paths, and its kinds."""

PALETTES: dict[str, tuple[str, ...]] = {
    name: _split(values)
    for name, values in {
        "color": "black, white, navy blue, red, forest green, gray, pink, purple, yellow, orange, brown, beige, "
        "teal, rose gold, silver, ivory, khaki, maroon, turquoise, coral, charcoal, olive",
        "size=clothes": "small, medium, large, xl, xxl",
        "size=shoes": "six, seven, eight, nine, ten, eleven",
        "size=bed": "twin, full, queen, king",
        "size=bottle": "mini, small, regular, large, jumbo",
        "size=cups": "small, medium, large, tall, giant",
        "size=bags": "small, medium, large, jumbo, bulk",
        "size=pans": "six inch, eight inch, ten inch, twelve inch",
        "size=phones": "mini, regular, plus, max",
        "size=shelf": "two tier, three tier, four tier, five tier",
        "size=plush": "mini, small, large, giant, jumbo",
        "size=liters": "small, medium, large, tall",
        "style=tech": "basic, pro, sport, studio",
        "style=keys": "full layout, tenkeyless, split, number pad",
        "style=brush": "paddle, oval, vented, comb",
        "style=lamp": "arched, clamp, tripod, classic",
        "style=plain": "floral, geometric, marble, solid",
        "style=knife": "santoku, paring, utility, carving",
        "style=puzzle": "map, castle, ocean, garden, train",
        "style=games": "strategy, trivia, word, dice",
        "style=animals": "bear, bunny, elephant, fox, owl, dinosaur",
        "style=bag": "tote, messenger, backpack, sling",
        "flavor": "dark chocolate, vanilla, peanut butter, caramel, strawberry, lemon, cinnamon, coconut, maple",
        "flavor=lips": "cherry, mango, honey, vanilla, strawberry, watermelon",
        "flavor=tea": "ginger, mint, lemon, jasmine, peach, honey",
        "flavor=savory": "barbecue, garlic, chili, honey, ranch, cheddar",
        "scent": "lavender, vanilla, citrus, rose, coconut, eucalyptus",
        "pack": "one, two, four, six, twelve",
        "level": "easy, medium, hard, expert",
        "size=sets": "mini set, starter set, family set, giant set",
        "players": "two, four, six, eight",
        "people": "two, four, six, eight",
        "length": "four feet, six feet, eight feet, ten feet, twelve feet",
        "length=blade": "five inch, six inch, eight inch, ten inch",
        "thickness": "thin, regular, plus, max",
        "weight": "light, medium, heavy, max",
        "power": "low, medium, high, max",
        "capacity": "mini, regular, plus, max",
        "material": "oak, walnut, bamboo, pine, maple",
        "firmness": "soft, medium, firm",
        "roast": "blonde, light, dark, french",
        "paper": "lined, dotted, blank, grid",
        "tip": "fine, medium, bold",
    }.items()
}
"""Option group (the part before `=` is its name on the page) -> the values that a shop knows for it."""

BRANDS = _split(
    "velora, brisko, tamsin, orvane, kelpo, nuvita, marlow, dexter, pindor, halvik, zorella, quillon, fernley, "
    "baxton, lumaro, cadenza, ostrava, wimble, grovato, sarno, pelmira, jontu, ravello, tiburon, ekko, mistral, "
    "norwick, alpina, corvano, dunmore, fiesta, glimmo, hathor, ilvana, jasper, kordan"
)
"""Invented makers."""

LEAN = _split("from the house of {brand}, a simple choice by {brand}, made by {brand}, new from {brand}")
"""Short descriptions."""

RICH = (
    "these {noun} are {attribute}",
    "{attribute} {noun}",
    "enjoy {attribute} {noun}",
    "you asked for {attribute}",
    "a new kind of {attribute}",
)
"""Sentences of long descriptions, which repeat what the title says and so rank well."""

MATCHES = ("goes well with {value}", "pairs nicely with our {value} line")
"""What long descriptions say about option values that the product may or may not offer."""

LACKING = "not sold in {value} this season"
"""What they may also say about values that it does not offer."""

PASSING = ("ask us about {word}", "more on {word} below", "see {word} on our page")
"""What long descriptions say about a single word of an attribute that the product does not have."""

CLAIMS = _split(
    "as promised, tested twice, every day, you will notice, our customers say, made to last, worth it, by design, "
    "no fuss, that is all"
)
"""What a feature line says after the attribute."""

HUMAN = (
    "i am looking for {phrase}{options}",
    "i need {phrase}{options}",
    "can you find me some {phrase}{options}?",
    "i want to buy {phrase}{options} please",
    "looking for {phrase}{options}",
    "show me {phrase}{options}",
)
"""How people ask. `phrase` reads "slim and quiet fans with timer for kids", or "fans for kids that are slim and quiet
and have timer"; `options` reads ", in navy blue, size xl"."""
