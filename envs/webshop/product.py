"""One product, as the shop shows it: WebShop's raw record with the fields that matter, cleaned.

Invariant: `Product.from_raw` makes of a raw record what the original's loader makes of it; `encode` and `decode`
are inverses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from rollenv.errors import RollenvError

DEFAULT_PRICE = 100.0
"""Dollars, for products without a price."""


@dataclass(slots=True)
class Product:
    """A product of the catalogue.

    Attributes:
        prices: one price, or the two ends of a range, in dollars.
        options: option name -> its values, both lower-cased.
        option_images: option value -> URL of its picture, or None.
        instruction, instruction_attributes: the synthetic instruction, if the product has one.
        human: human instructions as (text, attributes, options).
    """

    asin: str
    name: str
    description: str
    bullet_points: list[str]
    prices: list[float]
    price_tag: str
    image: str
    options: dict[str, list[str]]
    option_images: dict[str, str | None]
    category: str
    query: str
    product_category: str
    attributes: list[str]
    instruction: str | None = None
    instruction_attributes: list[str] = field(default_factory=list)
    human: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    @classmethod
    def from_raw(
        cls, raw: Mapping[str, Any], notes: Mapping[str, Any], human: Sequence[Mapping[str, Any]] = ()
    ) -> Product:
        """From a record of the items file, its entry of the attributes file and its human instructions.

        Raises:
            RollenvError: a key is missing or a price is not a number.
        """
        try:
            prices, price_tag = _prices(raw.get("pricing"))
            options, images = _options(raw["customization_options"])
            bullets = raw["small_description"]
            return cls(
                asin=raw["asin"],
                name=str(raw["name"]),
                description=str(raw["full_description"]),
                bullet_points=[str(b) for b in bullets] if isinstance(bullets, list) else [str(bullets)],
                prices=prices,
                price_tag=price_tag,
                image=str((raw["images"] or [""])[0]),
                options=options,
                option_images=images,
                category=str(raw["category"]),
                query=str(raw["query"]).lower().strip(),
                product_category=str(raw["product_category"]),
                attributes=notes.get("attributes", ["DUMMY_ATTR"]),
                instruction=notes.get("instruction"),
                instruction_attributes=notes.get("instruction_attributes") or [],
                human=[(h["instruction"], h["instruction_attributes"], h["instruction_options"]) for h in human],
            )
        except KeyError as error:
            raise RollenvError(
                f"webshop: product {raw.get('asin')!r} has no {error.args[0]!r}; the data files are not WebShop's"
            ) from error
        except (InvalidOperation, IndexError) as error:
            raise RollenvError(
                f"webshop: product {raw.get('asin')!r} has the price {raw.get('pricing')!r}; write it like '$9.99' "
                "or '$9.99 to $19.99'"
            ) from error

    @property
    def search_text(self) -> str:
        """What the search index holds of it."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullet_points[0] if self.bullet_points else ""
        return f"{self.name} {self.description} {first} {options}".lower()

    @property
    def combinations(self) -> int:
        """How many ways there are to choose one value of every option."""
        count = 1
        for values in self.options.values():
            count *= len(values)
        return count

    def encode(self) -> bytes:
        """Compact bytes."""
        values = [getattr(self, name) for name in self.__slots__]
        return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, data: bytes) -> Product:
        """The inverse of `encode`."""
        product = cls(*json.loads(data.decode("utf-8", "surrogatepass")))
        product.human = [(text, attributes, options) for text, attributes, options in product.human]
        return product


def _prices(pricing: str | None) -> tuple[list[float], str]:
    """The first two prices in a text like `$9.99 to $19.99`, and the tag that the shop shows."""
    if not pricing:
        return [DEFAULT_PRICE], f"${DEFAULT_PRICE}"
    found = [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:]]
    if len(found) == 1:
        return found, f"${found[0]}"
    return found[:2], f"${found[0]} to ${found[1]}"


def _options(raw: Mapping[str, Any] | str | None) -> tuple[dict[str, list[str]], dict[str, str | None]]:
    """Option values by name, and the picture of every value."""
    options: dict[str, list[str]] = {}
    images: dict[str, str | None] = {}
    if not isinstance(raw, Mapping):
        return options, images
    for name, contents in raw.items():
        if contents is None:
            continue
        values = []
        for content in contents:
            value = content["value"].strip().replace("/", " | ").lower()
            values.append(value)
            images[value] = content.get("image")
        options[name.lower()] = values
    return options, images
