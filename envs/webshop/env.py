"""WebShop: find and buy the product that an instruction asks for.

Invariant: observations, addresses, available actions and rewards are those of princeton-nlp/WebShop's text
environment, byte for byte. An environment holds an episode's state and nothing else: pages, products and goals are
shared by all environments of the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from os import PathLike
from typing import Any, Literal

from rollenv.core import EpisodeOver, Executor, TextEnv
from rollenv.envs.webshop import html
from rollenv.envs.webshop.catalogue import Catalogue, load_catalogue
from rollenv.envs.webshop.goals import Goals, load_goals
from rollenv.envs.webshop.nouns import resolve
from rollenv.envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PER_PAGE,
    PREV,
    SEARCH,
    SEPARATOR,
    SUB_PAGE_OF,
    View,
    done_view,
    head_rich,
    head_text,
    item_view,
    parse_action,
    results_view,
    sub_view,
)
from rollenv.envs.webshop.reward import reward_parts
from rollenv.errors import RollenvError, SnapshotError, did_you_mean
from rollenv.tasks import TaskSet

BASE_URL = "http://127.0.0.1:3000"
RANDOM_HITS = 50

ObservationMode = Literal["text", "text_rich", "html", "url"]
_MODES = ("text", "text_rich", "html", "url")
_KINDS = ("synthetic", "human")
_MAGIC = b"rollenv-webshop\x01"
# In the original's order: the first of these that occurs in the address says what kind of page it is.
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")

_back, _next, _prev, _buy = BACK.lower(), NEXT.lower(), PREV.lower(), BUY.lower()


class WebShopEnv(TextEnv):
    """The shop as a text environment. Actions are `search[keywords]` and `click[something clickable]`.

    Args:
        data: folder with WebShop's data files (see `load_catalogue`); None for the generated store.
        goals: `synthetic` goals (made from attributes and options) or `human` ones (written by people).
        observation_mode: `text` (visible texts joined by `[SEP]`), `text_rich` (buttons marked), `html` or `url`.
        price_seed: seed of what the original draws unseeded: prices of ranges and price bounds.
        num_products: only the first so many products of the file.
        nouns: what finds the nouns of titles: `spacy`, `list`, or `auto` (spaCy when its model is installed).
        show_attrs: whether product pages have a button `Attributes`, which shows the hidden attributes.
        render_mode: None, or `ansi`: `render` gives the page in the form `text_rich`.

    Besides rollenv's own keys, `info` has `url`, `instruction`, `available_actions` (`has_search_bar` and
    `clickables`, as in the original) and, at the end, `reward_parts` (see `reward.reward_parts`), `purchased` (the
    asin) and `options`. `admissible_actions` are the clicks; where there is a search bar, which takes any text, it
    has a search for the instruction as well.

    Raises:
        RollenvError: an argument is not one of its values, or the data files are missing or torn.
    """

    executor: Executor = "inline"
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    _kind: Literal["search", "results", "item", "sub", "done"]
    _view: View
    _url: str
    _keywords: list[str]
    _page: int
    _total: int
    _product: int
    """Number of the product that is open, -1 when none is."""
    _options: dict[str, str]
    _visited: tuple[str, ...]
    _sub: str
    _reward: float

    def __init__(
        self,
        data: str | PathLike[str] | None = None,
        goals: Literal["synthetic", "human"] = "synthetic",
        observation_mode: ObservationMode = "text",
        price_seed: int = 42,
        num_products: int | None = None,
        nouns: Literal["auto", "spacy", "list"] = "auto",
        show_attrs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        _check_choice("observation_mode", observation_mode, _MODES)
        _check_choice("goals", goals, _KINDS)
        if render_mode is not None:
            _check_choice("render_mode", render_mode, tuple(self.metadata["render_modes"]))
        self.render_mode = render_mode
        if not isinstance(price_seed, int):
            raise RollenvError(f"webshop: price_seed must be a whole number, not {price_seed!r}")
        self._data = (data, goals, price_seed, num_products)
        self._nouns = resolve(nouns)
        self._mode = observation_mode
        self._show_attrs = bool(show_attrs)
        self._attach()
        self._goal = -1  # index of the goal, -1 before the first reset
        self._over = True
        self._clear()

    def _attach(self) -> None:
        """Takes hold of what the process shares."""
        data, kind, price_seed, num_products = self._data
        self._catalogue: Catalogue = load_catalogue(data, num_products=num_products)
        self._goals: Goals = load_goals(self._catalogue, kind, price_seed)
        if not len(self._goals):
            raise RollenvError(
                f"webshop: {self._catalogue.source} has no {kind} goals among its {len(self._catalogue)} products"
            )

    @property
    def tasks(self) -> TaskSet:
        """The goals, with the original's splits."""
        return self._goals.task_set(self._nouns)

    @property
    def catalogue(self) -> Catalogue:
        """The products."""
        return self._catalogue

    # -- episodes ------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode: with the goal that `options={"task": id}` names, or a random one of the training split.

        Raises:
            RollenvError: there is no such task, or `options` has other keys.
        """
        super().reset(seed=seed)
        options = self.check_options(options)
        unknown = [key for key in options if key != "task"]
        if unknown:
            raise RollenvError(
                f"webshop: reset takes the option 'task', not '{unknown[0]}'{did_you_mean(str(unknown[0]), ['task'])}"
            )
        task = options.get("task")
        self._goal = self._goals.draw(self.np_random) if task is None else self._goals.index_of(task)
        self._over = False
        self._open_search()
        return self._observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does `search[...]` or `click[...]`; anything else, or a click on what is not there, changes nothing.

        Raises:
            InvalidAction: the action is not text.
            EpisodeOver: there is no episode going on.
        """
        action = self.check_text(action)
        if self._over:
            what = "before the first reset" if self._goal < 0 else "after the episode ended"
            raise EpisodeOver(f"webshop: step was called {what}; call reset() first")
        name, argument = parse_action(action)
        valid, reward = False, 0.0
        if argument is not None:
            if name == "search":
                self._open_results(argument.split(" "), 1)
                valid = True
            elif name == "click" and argument != "search" and argument in self._view.targets:
                valid = True
                if argument == _buy:
                    return self._purchase()
                self._click(argument)
        info = self._info()
        info["valid_action"] = valid
        return self._observation(), reward, False, False, info

    def _click(self, name: str) -> None:
        # What a button does depends on its name and on the address, as in the original; so an option that is
        # called like a button acts as one, and keywords like 'item_page' lead astray.
        if name == _back:
            self._open_search()
            return
        page = next((page for page in _PAGE_NAMES if page in self._url), "")
        if page == "search_results" and name in (_next, _prev):
            self._open_results(self._keywords, self._page + (1 if name == _next else -1))
        elif page == "item_page" and name == _prev:
            self._open_results(self._keywords, self._page)
        elif name in SUB_PAGE_OF:
            self._open_sub_page(SUB_PAGE_OF[name])
        else:
            kind, value = self._view.targets[name]
            if kind == "link":
                self._product = value
                self._visited = (*self._visited, self._catalogue.product(value).asin)
            elif kind == "option":
                self._options = {**self._options, value: name}
            self._open_item()

    def _purchase(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        product = self._catalogue.product(self._product)
        price = float(self._goals.prices[self._product])
        parts = reward_parts(self._goals[self._goal], product, self._options, price, self._catalogue.nouns(self._nouns))
        reward = float(parts["reward"])
        self._over = True
        self._reward = reward
        self._url = f"{BASE_URL}/done/{self._goal}/{product.asin}/{self._options}"
        self._kind = "done"
        self._view = done_view(product.asin, self._options, reward)
        info = self._info()
        info |= {
            "valid_action": True,
            "success": reward == 1.0,
            "reward_parts": parts,
            "purchased": product.asin,
            "options": dict(self._options),
        }
        return self._observation(), reward, True, False, info

    # -- pages ---------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._kind = "search"
        self._view = SEARCH
        self._url = BASE_URL
        self._keywords = []
        self._page = 0
        self._total = 0
        self._product = -1
        self._options = {}
        self._visited = ()
        self._sub = ""
        self._reward = 0.0

    def _open_search(self) -> None:
        self._clear()
        self._url = f"{BASE_URL}/{self._goal}"

    def _open_results(self, keywords: list[str], page: int) -> None:
        self._keywords, self._page = keywords, page
        self._product, self._options = -1, {}
        hits = self._find(keywords)
        self._total = len(hits)
        self._kind = "results"
        self._url = f"{BASE_URL}/search_results/{self._goal}/{'+'.join(keywords)}/{page}"
        self._view = self._results_view(_page_of(hits, page), page, len(hits))

    def _results_view(self, shown: tuple[int, ...], page: int, total: int) -> View:
        catalogue = self._catalogue
        return self._shared(
            (shown, page, total),
            lambda: results_view(shown, [catalogue.product(number) for number in shown], page, total),
        )

    def _open_item(self) -> None:
        number = self._product
        product = self._catalogue.product(number)
        self._kind = "item"
        self._url = (
            f"{BASE_URL}/item_page/{self._goal}/{product.asin}/{'+'.join(self._keywords)}/{self._page}/"
            f"{json.dumps(self._options) if self._options else '{}'}"
        )
        self._view = self._item_view(number)

    def _open_sub_page(self, name: str) -> None:
        number = self._product
        product = self._catalogue.product(number)
        self._kind, self._sub = "sub", name
        self._url = (
            f"{BASE_URL}/item_sub_page/{self._goal}/{product.asin}/{'+'.join(self._keywords)}/{self._page}/"
            f"{name}/{self._options}"
        )
        self._view = self._sub_view(number, name)

    def _item_view(self, number: int) -> View:
        product, attributes = self._catalogue.product(number), self._show_attrs
        return self._shared(("item", number, attributes), lambda: item_view(product, attributes))

    def _sub_view(self, number: int, name: str) -> View:
        product = self._catalogue.product(number)
        return self._shared((name, number), lambda: sub_view(product, name))

    def _shared(self, key: Any, make: Callable[[], View]) -> View:
        """A view that all environments of the process share."""
        views = self._catalogue.views
        view = views.get(key)
        if view is None:
            view = views[key] = make()
        return view

    def _find(self, keywords: list[str]) -> tuple[int, ...]:
        """Numbers of the products that a search finds. Keywords that begin with <r>, <a>, <c>, <q> are special."""
        catalogue = self._catalogue
        first, rest = keywords[0], " ".join(keywords[1:]).strip()
        if first == "<r>":
            count = min(RANDOM_HITS, len(catalogue))
            return tuple(self.np_random.choice(len(catalogue), size=count, replace=False).tolist())
        if first == "<a>":
            return catalogue.having("attribute", rest)
        if first == "<c>":
            return catalogue.having("category", keywords[1].strip() if len(keywords) > 1 else "")
        if first == "<q>":
            return catalogue.having("query", rest)
        return catalogue.hits(" ".join(keywords))

    # -- what is seen --------------------------------------------------------------------------------------

    def _observation(self) -> str:
        if self._mode == "text":
            return self._text()
        if self._mode == "url":
            return self._url
        return self._html() if self._mode == "html" else self._rich()

    def render(self) -> str | None:
        """The page as text with its buttons marked; None without a render mode or before the first reset."""
        return None if self.render_mode is None or self._goal < 0 else self._rich()

    def _instruction(self) -> str:
        return self._goals[self._goal]["instruction_text"]  # type: ignore[no-any-return]

    def _text(self) -> str:
        below = self._view.text
        if self._kind == "done":
            return below or ""
        top = head_text(self._instruction())
        if self._kind == "search":
            top = f"WebShop{SEPARATOR}{top}"
        return top if below is None else f"{top}{SEPARATOR}{below}"

    def _rich(self) -> str:
        clicked, below = self._view.rich(self._url, self._visited)
        if self._kind == "done":
            return below
        if self._kind == "search":
            return f"WebShop\n{head_rich('Instruction: ', self._instruction())}{below}"
        return f"{clicked}{head_rich('Instruction:', self._instruction())}{below}"

    def _html(self) -> str:
        session, instruction = str(self._goal), self._instruction()
        if self._kind == "search":
            return html.search_page(session, instruction)
        if self._kind == "results":
            products = [self._catalogue.product(number) for number in self._view.data]
            return html.results_page(session, instruction, self._keywords, self._page, self._total, products)
        product = self._catalogue.product(self._product)
        if self._kind == "done":
            return html.done_page(product.asin, self._options, self._reward)
        state = (session, instruction, self._keywords, self._page, product, self._options)
        return html.sub_page(*state, self._sub) if self._kind == "sub" else html.item_page(*state, self._show_attrs)

    def _info(self) -> dict[str, Any]:
        view = self._view
        searching = self._kind == "search"
        instruction = self._instruction()
        actions = list(view.actions)
        if searching:
            search = f"search[{instruction}]"
            # An instruction with brackets of its own would be read as another action.
            if parse_action(search)[0] == "search":
                actions.append(search)
        return {
            "task": self._goals.task_id(self._goal),
            "instruction": instruction,
            "url": self._url,
            "available_actions": {"has_search_bar": searching, "clickables": list(view.clickables)},
            "admissible_actions": actions,
        }

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The episode and the generator's state: `restore` continues to the very same future."""
        state = {
            "data": self._identity(),
            "goal": self._goal,
            "over": self._over,
            "kind": self._kind,
            "url": self._url,
            "keywords": self._keywords,
            "page": self._page,
            "total": self._total,
            "product": self._product,
            "options": self._options,
            "visited": self._visited,
            "sub": self._sub,
            "reward": self._reward,
            "shown": self._view.data,
            "random": self.np_random.bit_generator.state,
        }
        body = json.dumps(state, separators=(",", ":")).encode()
        return _MAGIC + hashlib.sha256(body).digest()[:8] + body

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        """Continues from `snapshot`, and returns the observation and the info that a step there would give.

        Raises:
            SnapshotError: the bytes are no snapshot, or one of other data, goals or settings; nothing is changed.
        """
        state = _unpack(snapshot)
        if state["data"] != self._identity():
            raise SnapshotError(
                "webshop: the snapshot is from another catalogue or other settings; restore it in an environment made "
                f"with the same arguments (it has {state['data']}, this one {self._identity()})"
            )
        self._goal, self._over, self._kind, self._url = state["goal"], state["over"], state["kind"], state["url"]
        self._keywords, self._page, self._total = state["keywords"], state["page"], state["total"]
        self._product, self._options, self._sub = state["product"], state["options"], state["sub"]
        self._visited, self._reward = tuple(state["visited"]), state["reward"]
        self.np_random.bit_generator.state = state["random"]
        self._view = self._restored_view(state["shown"])
        if self._goal < 0:
            return "", {}
        return self._observation(), self._info()

    def _restored_view(self, shown: list[int] | None) -> View:
        if self._kind == "search":
            return SEARCH
        if self._kind == "results":
            return self._results_view(tuple(shown or ()), self._page, self._total)
        if self._kind == "item":
            return self._item_view(self._product)
        if self._kind == "sub":
            return self._sub_view(self._product, self._sub)
        return done_view(self._catalogue.product(self._product).asin, self._options, self._reward)

    def _identity(self) -> list[Any]:
        """What a snapshot must agree with."""
        goals = self._goals
        return [self._catalogue.sha256, goals.kind, goals.price_seed, self._nouns, self._show_attrs]

    # -- copies to other processes -------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        shared = ("_catalogue", "_goals", "_view", "_thread")
        state = {key: value for key, value in self.__dict__.items() if key not in shared}
        return state | {"_shown": self._view.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        shown = state.pop("_shown")
        self.__dict__.update(state)
        self._attach()
        self._view = self._restored_view(shown)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise RollenvError(
            f"webshop: {name} must be one of {', '.join(choices)}, not {value!r}{did_you_mean(str(value), choices)}"
        )


def _page_of(hits: tuple[int, ...], page: int) -> tuple[int, ...]:
    return hits[(page - 1) * PER_PAGE : page * PER_PAGE]


def _unpack(snapshot: bytes) -> dict[str, Any]:
    size = len(_MAGIC) + 8
    if not isinstance(snapshot, bytes) or not snapshot.startswith(_MAGIC):
        raise SnapshotError("webshop: these bytes are not a snapshot of a WebShop environment of this version")
    body = snapshot[size:]
    if hashlib.sha256(body).digest()[:8] != snapshot[len(_MAGIC) : size]:
        raise SnapshotError("webshop: the snapshot is damaged; take a new one")
    state: dict[str, Any] = json.loads(body)
    return state
