"""Goals: what an episode asks for, in the order of the original.

Invariant: everything drawn (prices of ranges, price bounds) comes from a private `random.Random(price_seed)` in the
original's order, and the order of goals from one of seed 233; seed 42 gives the published reference.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollenv.envs.webshop.catalogue import Catalogue, LruCache
from rollenv.envs.webshop.product import Product
from rollenv.errors import RollenvError
from rollenv.tasks import TaskSet

Kind = Literal["synthetic", "human"]
ORDER_SEED = 233
SPLITS = {"test": (0, 500), "eval": (500, 1500), "train": (1500, None)}
"""Where each split begins and ends in the shuffled order."""
NO_BOUND = 1000000
"""The price bound of goals whose product is dearer than any bound."""

_BOUNDS = [10.0 * i for i in range(1, 100)]


class Goals:
    """The goals of one kind over a catalogue, in their shuffled order. Made by `load_goals`.

    Attributes:
        prices: (N,) float64, what every product costs, in dollars.
    """

    def __init__(self, catalogue: Catalogue, kind: Kind, price_seed: int) -> None:
        self.catalogue, self.kind, self.price_seed = catalogue, kind, price_seed
        arrays = catalogue.remembered(f"goals-{kind}-{price_seed}", self._draw)
        self.prices: NDArray[np.float64] = arrays["prices"]
        self._products, self._choices, self._bounds = arrays["products"], arrays["choices"], arrays["bounds"]
        self._goals: LruCache = LruCache(4096)
        self._task_sets: dict[str, TaskSet] = {}
        self._train_weights: NDArray[np.float64] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._products)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The goal at `index` of the shuffled order, with the original's keys. Not to be changed."""
        goal = self._goals.get(index)
        if goal is None:
            if not 0 <= index < len(self):
                raise IndexError(index)
            goal = self._goals[index] = self._make(index)
        return goal

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    # -- tasks ---------------------------------------------------------------------------------------------

    def task_id(self, index: int) -> str:
        return f"{self.kind}-{index}"

    def index_of(self, task_id: object) -> int:
        """The index of the goal of that id.

        Raises:
            RollenvError: there is no such task.
        """
        kind, _, number = task_id.rpartition("-") if isinstance(task_id, str) else ("", "", "")
        if kind == self.kind and number.isascii() and number.isdigit() and str(int(number)) == number:
            index = int(number)
            if index < len(self):
                return index
        last = f"{self.kind}-0 to {self.task_id(len(self) - 1)}" if len(self) else "none"
        raise RollenvError(f"webshop: there is no task {task_id!r} among the {self.kind} goals (there is {last})")

    def task_set(self, nouns: str) -> TaskSet:
        """The goals as tasks in splits; `nouns` names the component that finds the nouns of titles."""
        with self._lock:
            if nouns not in self._task_sets:
                splits = {
                    name: [self.task_id(i) for i in range(len(self))[start:end]]
                    for name, (start, end) in SPLITS.items()
                }
                facts = {
                    "environment": "WebShop-v1",
                    "catalogue": self.catalogue.sha256,
                    "products": len(self.catalogue),
                    "price_seed": self.price_seed,
                    "nouns": nouns,
                }
                self._task_sets[nouns] = TaskSet(f"webshop-{self.kind}", splits, self._content, facts)
            return self._task_sets[nouns]

    def _content(self, task_id: str) -> dict[str, Any]:
        return {key: value for key, value in self[self.index_of(task_id)].items() if key != "weight"}

    def draw(self, rng: np.random.Generator) -> int:
        """The index of a random training goal (any goal where there is no training split), by the goals' weights."""
        start = SPLITS["train"][0] if len(self) > SPLITS["train"][0] else 0
        if self.kind == "human":
            return int(rng.integers(start, len(self)))
        if self._train_weights is None:
            weights = self.catalogue.array("weights")[self._products[start:]]
            self._train_weights = np.cumsum(weights)
        total = self._train_weights[-1]
        at = int(np.searchsorted(self._train_weights, rng.random() * total, side="right"))
        return start + min(at, len(self) - start - 1)

    # -- making --------------------------------------------------------------------------------------------

    def _draw(self) -> dict[str, NDArray[Any]]:
        rng = random.Random(self.price_seed)
        if self.kind == "human":
            # The recorded prices of the human goals begin one 32-bit draw later than those of the synthetic ones.
            rng.getrandbits(32)
        prices = _draw_prices(self.catalogue, rng)
        counts, drawing = self._counts()
        bounds = [_draw_bound(rng, float(prices[product])) for product in drawing]
        order = list(range(int(counts.sum())))
        random.Random(ORDER_SEED).shuffle(order)
        shuffled = np.array(order, dtype=np.int64)
        products = np.repeat(np.array(drawing, dtype=np.int32), counts)
        choices = np.arange(len(products)) - np.repeat(np.cumsum(counts) - counts, counts)
        if self.kind == "human":
            # Each human instruction draws its own bound; `choices` numbers those of a product.
            choices = _number_within(products)
        return {
            "prices": prices,
            "products": products[shuffled],
            "choices": choices[shuffled].astype(np.int64),
            "bounds": np.repeat(np.array(bounds, dtype=np.float64), counts)[shuffled],
        }

    def _counts(self) -> tuple[NDArray[np.int64], list[int]]:
        """How many goals each drawing of a bound makes, and the product it is for, in order."""
        if self.kind == "human":
            human = self.catalogue.array("human")
            drawing = np.repeat(np.arange(len(human)), human)
            return np.ones(len(drawing), dtype=np.int64), drawing.tolist()
        combinations = self.catalogue.array("combinations")
        drawing = np.flatnonzero(combinations >= 0)
        return combinations[drawing], drawing.tolist()

    def _make(self, index: int) -> dict[str, Any]:
        number = int(self._products[index])
        product = self.catalogue.product(number)
        bound = float(self._bounds[index])
        price_text = "" if bound == NO_BOUND else f", and price lower than {bound:.2f} dollars"
        wanted, options, text = (
            _human_part(product, int(self._choices[index]))
            if self.kind == "human"
            else _synthetic_part(product, int(self._choices[index]))
        )
        return {
            "asin": product.asin,
            "category": product.category,
            "query": product.query,
            "name": product.name,
            "product_category": product.product_category,
            "instruction_text": text + price_text,
            "attributes": wanted,
            "price_upper": NO_BOUND if bound == NO_BOUND else bound,
            "goal_options": options,
            "weight": 1 if self.kind == "human" else float(self.catalogue.array("weights")[number]),
        }


def _number_within(products: NDArray[np.int32]) -> NDArray[np.int64]:
    """0, 1, 2, ... within each run of equal products."""
    starts = np.flatnonzero(np.diff(products, prepend=-1))
    lengths = np.diff(np.append(starts, len(products)))
    return np.arange(len(products)) - np.repeat(starts, lengths)


def _draw_prices(catalogue: Catalogue, rng: random.Random) -> NDArray[np.float64]:
    prices = np.array(catalogue.array("price_low"))
    ends = catalogue.array("price_high")
    two_prices = catalogue.array("ranged")
    for number in np.flatnonzero(two_prices).tolist():
        prices[number] = rng.uniform(float(prices[number]), float(ends[number]))
    return prices


def _draw_bound(rng: random.Random, price: float) -> float:
    """The larger of two of the next four tens above the price; none when fewer than two are left."""
    nearest = [bound for bound in _BOUNDS if bound > price][:4]
    return max(rng.sample(nearest, 2)) if len(nearest) >= 2 else NO_BOUND


def _human_part(product: Product, choice: int) -> tuple[list[str], list[str], str]:
    """Attributes, options and text of a product's human instruction: those without attributes do not count."""
    text, attributes, options = [entry for entry in product.human if entry[1]][choice]
    return attributes, options, text.strip(".")


def _synthetic_part(product: Product, choice: int) -> tuple[list[str], dict[str, str], str]:
    """Attributes, options and text of one combination of option values, counted as nested loops would."""
    names = sorted(product.options)
    picked = {}
    for name in reversed(names):
        choice, at = divmod(choice, len(product.options[name]))
        picked[name] = product.options[name][at]
    options = {name: picked[name] for name in names}
    text = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return product.instruction_attributes, options, f"{product.instruction}{f' with {text}' if text else ''}"


_lock = threading.Lock()
_loaded: dict[tuple[int, str, int], Goals] = {}


def load_goals(catalogue: Catalogue, kind: Kind = "synthetic", price_seed: int = 42) -> Goals:
    """The goals of that kind; the same object for the same arguments within a process."""
    key = (id(catalogue), kind, price_seed)
    goals = _loaded.get(key)
    if goals is None:
        with _lock:
            goals = _loaded.setdefault(key, Goals(catalogue, kind, price_seed))
    return goals
