"""WebShopOracle: a scripted expert for WebShop that sees only what any agent sees.

Invariant: an action depends on the observations and infos of this episode and on the seed of `reset`, on nothing
else: no catalogue, no goal, no hidden attributes. What it does can therefore be learned from what it read.

It reads a page as a careful shopper would: the first hit whose title names everything that is asked for and whose
price is under the bound; open it; is every option offered? if not, back to the next such hit; choose the options;
buy. A hit whose title leaves an attribute open is opened after those, and its Features page is read.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollenv.errors import RollenvError

_SEPARATOR = " [SEP] "
_PRICE_CLAUSE = re.compile(r",? *and price lower than ([\d.]+) dollars\s*$")
_OPTION = re.compile(r", and (?=[^:,]+: )")
_MONEY = re.compile(r"\$([\d,]+(?:\.\d+)?)")
_PAGE = re.compile(r"Page (\d+) \(")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_FILLER = frozenset(
    _WORD.findall(
        "a am an and are as at be but buy by can color could do find flavor for from get has have hello i i'd i'm in "
        "is it like looking me my need of on or pair please should show some that the they this to want which with "
        "would you"
    )
)
"""Words that say nothing about which product is meant."""

NEAR = 3
"""A title that leaves so many more words open than the best one is still worth a look."""
MISSING = 3
"""Asking for an option that is not offered is so many times as tempting as any other single mistake."""
PATIENCE = 4
"""A free instruction says more than pages can answer: after so many products the best one will do."""
VAGUE = 3
"""When every title leaves at least so many words open, titles tell too little: the order of the list decides."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the instruction asks for, as far as its words tell."""

    query: str
    """What to search for first: the instruction without its frame and its price."""
    core: str
    """The same without the options."""
    words: frozenset[str]
    """Words that the product should account for."""
    options: tuple[tuple[str, str], ...]
    """Named options (`color: navy blue`), in the instruction's order; a free instruction names none."""
    formal: bool
    """Whether it has WebShop's synthetic form, which names attributes and options exactly."""
    bound: float
    """Dollars; infinite when there is no bound."""
    text: str
    """The whole instruction in lower case, without its price."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A product in a list of hits, or the one whose page is open."""

    asin: str
    title: str
    price: float
    """Dollars; the upper end of a range."""
    low: float
    """Dollars; the lower end of a range."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows."""

    kind: Literal["search", "results", "item", "sub", "other"]
    clickables: tuple[str, ...] = ()
    number: int = 1
    """Of a list of hits: which page of it this is."""
    hits: tuple[Hit, ...] = ()
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Option group -> values, on a product's page."""
    words: frozenset[str] = frozenset()
    """All words of the page but the instruction's."""


# -- reading ----------------------------------------------------------------------------------------------------


def words_of(text: str) -> frozenset[str]:
    """The words of a text in lower case, without filler and without the s of a plural."""
    words = (word.removesuffix("'s") for word in _WORD.findall(text.lower()))
    return frozenset(
        w[:-1] if len(w) > 3 and w.endswith("s") and w[-2] != "s" else w for w in words if w not in _FILLER
    )


def read_request(instruction: str) -> Request:
    """Takes an instruction apart: WebShop's synthetic form exactly, any other text by its words."""
    text = instruction.strip().lower()
    price = _PRICE_CLAUSE.search(text)
    bound = float(price[1]) if price else float("inf")
    text = (text[: price.start()] if price else text).strip()
    core = text
    options: tuple[tuple[str, str], ...] = ()
    formal = text.startswith("find me ")
    if formal:
        core = text.removeprefix("find me ")
        colon = core.find(": ")
        start = core.rfind(" with ", 0, colon) if colon >= 0 else -1
        if start >= 0:
            pairs = (part.partition(": ") for part in _OPTION.split(core[start + len(" with ") :]))
            options = tuple((name, value) for name, _, value in pairs)
        query, core = core, core[:start] if start >= 0 else core
    else:
        query = text
    return Request(query or "product", core or "product", words_of(core), options, formal, bound, text)


def read_page(observation: str, info: dict[str, Any]) -> Page:
    """Reads an observation of mode `text`, with the clickables that `info` lists."""
    nodes = observation.split(_SEPARATOR)
    if "Instruction:" in nodes[:2]:
        at = nodes.index("Instruction:")
        nodes = nodes[:at] + nodes[at + 2 :]
    available = info.get("available_actions") or {}
    clickables = tuple(available.get("clickables") or ())
    if available.get("has_search_bar"):
        return Page("search", clickables)
    words = words_of(" ".join(nodes))
    if "buy now" in clickables:
        return _read_item(nodes, clickables, words)
    number = next((m for m in map(_PAGE.match, nodes) if m), None)
    if number:
        return Page("results", clickables, int(number[1]), tuple(_read_hits(nodes, clickables)))
    return Page("sub" if "< prev" in clickables else "other", clickables, words=words)


def _read_hits(nodes: list[str], clickables: tuple[str, ...]) -> list[Hit]:
    known = set(clickables)
    return [
        Hit(nodes[i].lower(), nodes[i + 1].lower(), *_price(nodes[i + 2]))
        for i in range(len(nodes) - 2)
        if nodes[i].lower() in known and nodes[i + 2].startswith("$")
    ]


def _read_item(nodes: list[str], clickables: tuple[str, ...], words: frozenset[str]) -> Page:
    """A product's page: option groups, each followed by its values, then title and price."""
    at = next((i for i, node in enumerate(nodes) if node.startswith("Price:")), len(nodes))
    known = set(clickables)
    groups: dict[str, list[str]] = {}
    name = ""
    for node in nodes[2 : max(at - 1, 2)]:  # after "Back to Search" and "< Prev"
        if node.lower() in known and name:
            groups[name].append(node.lower())
        else:
            name = node.lower()
            groups[name] = []
    title = nodes[at - 1].lower() if 0 < at < len(nodes) else ""
    prices = _price(nodes[at]) if at < len(nodes) else (0.0, 0.0)
    options = {name: tuple(values) for name, values in groups.items() if values}
    return Page("item", clickables, 1, (Hit("", title, *prices),), options, words)


def _price(text: str) -> tuple[float, float]:
    """Highest and lowest amount in a text, in dollars; zero when there is none."""
    amounts = [float(amount.replace(",", "")) for amount in _MONEY.findall(text)]
    return max(amounts, default=0.0), min(amounts, default=0.0)


# -- shopping ---------------------------------------------------------------------------------------------------


class WebShopOracle:
    """The expert.

    Args:
        noise: at each decision, the probability of a plausible shopper's mistake instead (another hit, a hit above
            the bound, a wrong or forgotten option, one that is not offered, a needless page, a careless query). It then
            carries on sensibly from where it is, so that demonstrations hold recoveries.
        limit: actions after which the episode would be cut; it settles for the best it knows in time to buy.

    Raises:
        RollenvError: `noise` is not a probability.
    """

    def __init__(self, noise: float = 0.0, limit: int = 15) -> None:
        if not 0.0 <= noise <= 1.0:
            raise RollenvError(f"noise is a probability from 0 to 1, not {noise}")
        self.noise = noise
        self.limit = limit
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Forgets the last episode; `seed` decides the mistakes of the next one."""
        self._rng = random.Random(f"webshop oracle {seed}")
        self._request: Request | None = None
        self._turn = 0
        self._query = 0
        self._exhausted: set[int] = set()  # pages of this query's hits where nothing is left to try
        self._tried: dict[str, int] = {}  # asin -> how many wishes it leaves open
        self._learned: dict[str, frozenset[str]] = {}  # asin -> words of its further pages
        self._read: set[str] = set()  # whose Features page was opened
        self._asin = ""  # the product whose pages are open
        self._picked: dict[str, str] = {}  # option group -> value chosen on the open product
        self._settled = False  # out of time: buy what is open
        self._vague = False  # titles do not tell: what offers the options will do

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next action, `search[...]` or `click[...]`."""
        page = read_page(observation, info)
        if self._request is None:
            self._request = read_request(_instruction(observation))
        self._turn += 1
        if page.kind == "sub":
            self._learned[self._asin] = self._learned.get(self._asin, frozenset()) | page.words
        elif page.kind != "item":
            self._picked = {}
        action = ""
        if self.noise and self._rng.random() < self.noise:
            action = self._mistake(page, self._request)
        action = action or self._decide(page, self._request)
        self._remember(page, action)
        return action

    def _decide(self, page: Page, request: Request) -> str:
        if page.kind == "search":
            return f"search[{self._queries(request)[self._query]}]"
        if page.kind == "results":
            return self._choose_hit(page, request)
        if page.kind == "item":
            return self._shop(page, request)
        return "click[< prev]" if "< prev" in page.clickables else "click[back to search]"

    def _remember(self, page: Page, action: str) -> None:
        """Notes what the action changes that later pages do not show."""
        label = action[len("click[") : -1]
        if page.kind == "results" and any(hit.asin == label for hit in page.hits):
            self._asin = label
        if label == "features":
            self._read.add(self._asin)
        for group, values in page.options.items():
            if label in values:
                self._picked[group] = label

    @property
    def _left(self) -> int:
        """Actions left, the present one included."""
        return self.limit - self._turn + 1

    def _queries(self, request: Request) -> list[str]:
        """What to search for, in turn: everything, without the options, the kind with its adjectives, one word."""
        head = re.split(r" with | for ", request.core)[0]
        return list(dict.fromkeys((request.query, request.core, head, head.split()[-1])))

    # -- the list of hits --------------------------------------------------------------------------------------

    def _choose_hit(self, page: Page, request: Request) -> str:
        """The first hit that leaves the fewest words open, is under the bound and was not tried; or on from here."""
        needed = 2 + (len(request.options) if request.formal else 2)  # open it, choose, buy
        candidates = self._candidates(page, request)
        patient = request.formal or len(self._tried) < PATIENCE
        if candidates and self._left > needed + 1 and patient:
            return f"click[{candidates[0].asin}]"
        known = not request.formal and any(hit.asin in self._tried for hit in page.hits)
        if page.hits and (candidates or known or self._left <= needed + 3):
            self._settled = True
            return f"click[{min(page.hits, key=lambda hit: self._regret(hit, request)).asin}]"
        self._exhausted.add(page.number)
        if page.number > 1 and page.number - 1 not in self._exhausted and "< prev" in page.clickables:
            return "click[< prev]"
        if page.number == 1 and page.hits and "next >" in page.clickables:
            return "click[next >]"
        self._query = min(self._query + 1, len(self._queries(request)) - 1)
        self._exhausted = set()
        return "click[back to search]"

    def _candidates(self, page: Page, request: Request) -> list[Hit]:
        """Untried hits under the bound: first those that leave the fewest words open, in the order of the list."""
        fewest = min((len(self._open(hit, request)) for hit in page.hits if hit.low <= request.bound), default=0)
        if page.number == 1:
            self._vague = fewest >= (VAGUE if request.formal else 2 * VAGUE)
        untried = [hit for hit in page.hits if self._affordable(hit, request) and hit.asin not in self._tried]
        if self._vague:
            return untried
        near = [hit for hit in untried if len(self._open(hit, request)) <= fewest + NEAR]
        return sorted(near, key=lambda hit: len(self._open(hit, request)) > fewest)

    def _affordable(self, hit: Hit, request: Request) -> bool:
        """Whether the price is under the bound: all of a range, unless titles are vague."""
        return (hit.low if self._vague else hit.price) <= request.bound

    def _regret(self, hit: Hit, request: Request) -> int:
        """How many wishes a hit leaves open, as far as is known."""
        return self._tried.get(hit.asin, len(self._open(hit, request)) + 3 * (not self._affordable(hit, request)))

    def _open(self, hit: Hit, request: Request) -> frozenset[str]:
        """The words of the request that neither the title nor pages already read account for."""
        return request.words - words_of(hit.title) - self._learned.get(hit.asin, frozenset())

    # -- a product ---------------------------------------------------------------------------------------------

    def _shop(self, page: Page, request: Request) -> str:
        """Checks price, options and title, then chooses the options and buys; or goes back."""
        wanted, unmet = wanted_options(page, request)
        if not self._settled:
            hit, buying = page.hits[0], len(wanted) + 1
            named = words_of(" ".join((*wanted, *wanted.values())))
            unknown = frozenset() if self._vague else self._open(replace(hit, asin=self._asin), request) - named
            wrong = unmet + (not self._affordable(hit, request))
            unread = request.formal and self._asin not in self._read and "features" in page.clickables
            if unknown and not wrong and unread and self._left >= 2 + buying:
                return "click[features]"
            if wrong or unknown:
                self._tried[self._asin] = 3 * wrong + len(unknown)
                if self._left >= 2 + buying:
                    return "click[< prev]"
        for group, value in wanted.items():
            if self._picked.get(group) != value:
                return f"click[{value}]"
        return "click[buy now]"

    # -- mistakes ----------------------------------------------------------------------------------------------

    def _mistake(self, page: Page, request: Request) -> str:
        """A plausible mistake on this page; `""` where there is none to make."""
        choices: list[str] = []
        if page.kind == "search":
            words = request.core.replace(",", "").split()
            start = self._rng.randrange(len(words))
            choices = [f"search[{request.core}]", f"search[{' '.join(words[start : start + 3])}]"]
        elif page.kind == "results":
            others = [hit.asin for hit in page.hits if hit.asin != self._asin]
            choices = [f"click[{self._rng.choice(others)}]"] if others else []
            careless = [hit.asin for hit in page.hits if not self._open(hit, request)]
            choices += [f"click[{asin}]" for asin in careless[:1]]
            choices += [f"click[{label}]" for label in ("next >", "back to search") if label in page.clickables]
        elif page.kind == "item":
            values = [value for group in page.options.values() for value in group]
            choices = [f"click[{label}]" for label in ("< prev", "features", "description", "buy now")]
            choices += [f"click[{value}]" for value in self._rng.sample(values, min(2, len(values)))]
            # What is asked for, though it is not offered: as labels are written, group first.
            missing = [f"{name}: {value}" for name, value in request.options if value not in values]
            choices += [f"click[{label}]" for label in missing for _ in range(MISSING)]
        return self._rng.choice(choices) if choices else ""


def wanted_options(page: Page, request: Request) -> tuple[dict[str, str], int]:
    """Which values to choose on a product's page (group -> value), and how many wishes it does not offer.

    A request that names its options says what is missing; a free one only tells which offered values it mentions.
    """
    wanted: dict[str, str] = {}
    if request.options:
        for name, value in request.options:
            groups = [name] if name in page.options else list(page.options)
            group = next((g for g in groups if value in page.options[g]), None)
            if group is not None:
                wanted[group] = value
        return wanted, len(request.options) - len(wanted)
    for group, values in page.options.items():
        named = [v for v in values if re.search(rf"(?<!\w){re.escape(v)}(?!\w)", request.text)]
        if named:
            wanted[group] = max(named, key=len)
    return wanted, 0


def _instruction(observation: str) -> str:
    """The instruction that the page shows; the whole text when it shows none."""
    nodes = observation.split(_SEPARATOR)
    at = nodes.index("Instruction:") + 1 if "Instruction:" in nodes[:2] else 0
    return nodes[at] if at < len(nodes) else observation
