"""The native engine: plays a compiled game, byte for byte as the original does, in microseconds.

Invariant: feedback, admissible commands and the goal are functions of `State`, and a command that is not admissible
changes nothing. A set of objects or receptacles is an integer with one bit each, numbered in the order in which the
original lists them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollenv.envs.alfworld.dialect import OBJECT_STATES, Dialect
from rollenv.envs.alfworld.game import Clause, Game

NOTHING_HAPPENS = "Nothing happens."
NOBODY = -1
_STATES = ("clean", "hot", "cool", "sliced", "on")


@dataclass(slots=True)
class State:
    """Everything that changes in a game.

    Attributes:
        at: the agent's location.
        held: the object in hand, `NOBODY` for none.
        opened: set of receptacles.
        contents: receptacle -> set of objects.
        taken: receptacle -> set of objects that were taken out of it and not put back since: what the original
            lists as lying around when they are put elsewhere at the same place.
        lying: location -> set of objects that are at it.
        clean, hot, cool, toggled, sliced: sets of objects.
    """

    at: int
    held: int
    opened: int
    contents: list[int]
    taken: list[int]
    lying: list[int]
    clean: int
    hot: int
    cool: int
    toggled: int
    sliced: int


class Words:
    """A dialect made ready: how commands begin, and what the engine answers."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        commands = dialect.commands
        self.begin = {name: beginning for name, (beginning, _) in commands.items()}
        self.middle = {name: middle for name, (_, middle) in commands.items()}
        self.verbs = {self.begin[name].split(" ")[0]: name for name in ("gotolocation", *_HANDLERS)}
        self.verbs |= {self.begin[name]: name for name in ("look", "inventory", "help") if name in commands}
        self.open_view, self.closed_view, self.plain_view = (view.format for view in dialect.views)
        container, *others = dialect.objects
        self.container_view = container.format
        self.object_views = [
            (frozenset(states), text.format) for states, text in zip(OBJECT_STATES, others, strict=True)
        ]
        self.always = sorted(self.begin[name] for name in ("look", "inventory", "help") if name in commands)

        self.distinct = len(self.verbs) == len(_HANDLERS) + 1 + len(self.always)
        """Whether the first word of a command tells what is to be done, as the engine takes for granted."""


class Board:
    """What all episodes of a game share: the game, its words, and what can be computed once."""

    def __init__(self, game: Game, words: Words) -> None:
        self.game, self.words = game, words
        self.object_number = {name: number for number, name in enumerate(game.objects)}
        self.receptacle_number = {name: number for number, name in enumerate(game.receptacles)}
        self.at_place: list[list[int]] = [[] for _ in game.locations]
        for receptacle, place in enumerate(game.place):
            self.at_place[place].append(receptacle)
        self.inside = dict(game.inside)
        self._walks: dict[int, list[str]] = {}
        self._all_walks: list[tuple[str, int]] | None = None

    def walks(self, place: int) -> list[str]:
        """The sorted commands that lead away from `place`."""
        found = self._walks.get(place)
        if found is None:
            if self._all_walks is None:
                begin, game = self.words.begin["gotolocation"], self.game
                self._all_walks = sorted((begin + name, game.place[r]) for r, name in enumerate(game.receptacles))
            found = self._walks[place] = [command for command, where in self._all_walks if where != place]
        return found

    def episode(self) -> Simulator:
        """A new episode."""
        return Simulator(self, self.first())

    def first(self) -> State:
        """The state in which the game begins."""
        game = self.game
        return State(
            game.start, NOBODY, game.opened, list(game.contents), [0] * len(game.receptacles), list(game.lying),
            game.clean, game.hot, game.cool, game.toggled, game.sliced,
        )  # fmt: skip

    def named(self, objects: int) -> list[str]:
        """`a apple 1` for every object of a set, in the original's order."""
        names = self.game.objects
        return ["a " + names[number] for number in members(objects)]


def members(numbers: int) -> list[int]:
    """The members of a set in rising order."""
    found = []
    while numbers:
        lowest = numbers & -numbers
        found.append(lowest.bit_length() - 1)
        numbers ^= lowest
    return found


class Simulator:
    """One episode of a game: a board and a state.

    `command` plays; `admissible` lists what can be played; `won` says whether the goal holds.
    """

    __slots__ = ("_admissible", "board", "state", "won")

    def __init__(self, board: Board, state: State) -> None:
        self.board = board
        self.state = state
        self._admissible: list[str] | None = None
        self.won = self._goal_holds()

    # -- what is seen ------------------------------------------------------------------------------------------

    def welcome(self) -> str:
        """The first observation."""
        dialect, game = self.board.words.dialect, self.board.game
        look = self._place_view()
        if look is None:
            # Without a place to speak of, the original looks for receptacles anywhere.
            every = ["a " + name for name in game.receptacles]
            look = dialect.nowhere.format(list=dialect.join(every) if every else dialect.no_appliances)
        return dialect.welcome.format(look=look, task=game.task)

    def _place_view(self) -> str | None:
        board, state = self.board, self.state
        here = board.at_place[state.at]
        if not here:
            return None
        dialect, names = board.words.dialect, board.game.receptacles
        facing = dialect.facing.format(list=dialect.join([names[receptacle] for receptacle in here]))
        floor = [
            "a " + board.game.objects[number]
            for number in members(state.lying[state.at])
            for receptacle in here
            if state.taken[receptacle] >> number & 1
        ]
        return dialect.beside.format(facing=facing, floor=dialect.join(floor) if floor else dialect.no_floor)

    def _look(self) -> str:
        view = self._place_view()
        if view is None:
            dialect = self.board.words.dialect
            # Now the place is known, and no receptacle stands there.
            view = dialect.nowhere.format(list=dialect.no_appliances)
        return view

    def _view(self, receptacle: int) -> str:
        board, state = self.board, self.state
        words, name = board.words, board.game.receptacles[receptacle]
        if board.game.openable >> receptacle & 1:
            if not state.opened >> receptacle & 1:
                return words.closed_view(r=name)
            view = words.open_view
        else:
            view = words.plain_view
        return view(r=name, list=words.dialect.join(board.named(state.contents[receptacle])))

    def _object_view(self, number: int) -> str:
        board, state = self.board, self.state
        game, name = board.game, board.game.objects[number]
        if game.containers >> number & 1:
            inside = board.named(board.inside.get(number, 0))
            return board.words.container_view(o=name, list=board.words.dialect.join(inside))
        sets = (state.clean, state.hot, state.cool, state.sliced, game.toggleable & state.toggled)
        holding = {word for word, numbers in zip(_STATES, sets, strict=True) if numbers >> number & 1}
        return next(view(o=name) for wanted, view in board.words.object_views if wanted <= holding)

    def _inventory(self) -> str:
        dialect, held = self.board.words.dialect, self.state.held
        if held < 0:
            return dialect.empty_handed
        return dialect.carrying.format(list="a " + self.board.game.objects[held])

    # -- what is done ------------------------------------------------------------------------------------------

    def command(self, command: str) -> str | None:
        """Does what `command` says and returns the feedback; None, with nothing changed, when it is not admissible."""
        command = command.strip()
        words = self.board.words
        verb = command.partition(" ")[0]
        name = words.verbs.get(verb)
        if name is None:
            return None
        if name == "gotolocation":
            return self._go(command)
        handler = _HANDLERS.get(name)
        if handler is None:
            return self._plain(name) if command == verb else None
        begin = words.begin[name]
        if not command.startswith(begin):
            return None
        return handler(self, command[len(begin) :])

    def _plain(self, name: str) -> str:
        if name == "look":
            return self._look()
        if name == "inventory":
            return self._inventory()
        return self.board.words.dialect.feedback["help"]

    def _go(self, command: str) -> str | None:
        board, state = self.board, self.state
        begin = board.words.begin["gotolocation"]
        receptacle = board.receptacle_number.get(command[len(begin) :]) if command.startswith(begin) else None
        if receptacle is None:
            return None
        place = board.game.place[receptacle]
        if place == state.at:
            return None
        state.at = place
        self._changed()
        view = self._view(receptacle)
        name = board.game.receptacles[receptacle]
        return board.words.dialect.feedback["gotolocation"].format(r=name, l=board.game.locations[place], view=view)

    def _here(self, name: str) -> int | None:
        """The number of the receptacle of that name, if it is where the agent is."""
        number = self.board.receptacle_number.get(name)
        if number is None or self.board.game.place[number] != self.state.at:
            return None
        return number

    def _open(self, name: str) -> str | None:
        receptacle, state = self._here(name), self.state
        if receptacle is None or not (self.board.game.openable & ~state.opened) >> receptacle & 1:
            return None
        state.opened |= 1 << receptacle
        self._changed()
        return self.board.words.dialect.feedback["openobject"].format(r=name, view=self._view(receptacle))

    def _close(self, name: str) -> str | None:
        receptacle, state = self._here(name), self.state
        if receptacle is None or not (self.board.game.openable & state.opened) >> receptacle & 1:
            return None
        state.opened &= ~(1 << receptacle)
        self._changed()
        return self.board.words.dialect.feedback["closeobject"].format(r=name)

    def _examine(self, name: str) -> str | None:
        receptacle = self._here(name)
        if receptacle is not None:
            return self._view(receptacle)
        number = self.board.object_number.get(name, NOBODY)
        return self._object_view(number) if number >= 0 and number == self.state.held else None

    def _reachable(self, receptacle: int) -> bool:
        """Whether a hand can get into it: it is open, or cannot be closed."""
        return not (self.board.game.openable & ~self.state.opened) >> receptacle & 1

    def _pair(self, action: str, rest: str) -> tuple[int, int, str, str] | None:
        """The object and the receptacle at this place that `apple 1 from desk 2` names, with their names."""
        what, middle, where = rest.partition(self.board.words.middle[action])
        if not middle:
            return None
        receptacle = self._here(where)
        number = self.board.object_number.get(what)
        return None if receptacle is None or number is None else (number, receptacle, what, where)

    def _take(self, rest: str) -> str | None:
        pair, state = self._pair("pickupobject", rest), self.state
        if pair is None or state.held >= 0:
            return None
        number, receptacle, what, where = pair
        bit = 1 << number
        if not state.contents[receptacle] & self.board.game.pickupable & bit or not self._reachable(receptacle):
            return None
        state.held = number
        state.contents[receptacle] ^= bit
        state.taken[receptacle] |= bit
        state.lying[state.at] &= ~bit
        self._changed()
        return self.board.words.dialect.feedback["pickupobject"].format(o=what, r=where)

    def _put(self, rest: str) -> str | None:
        pair, state = self._pair("putobject", rest), self.state
        if pair is None or pair[0] != state.held:
            return None
        number, receptacle, what, where = pair
        bit = 1 << number
        if not self.board.game.takes[receptacle] & bit or not self._reachable(receptacle):
            return None
        state.held = NOBODY
        state.contents[receptacle] |= bit
        state.taken[receptacle] &= ~bit
        state.lying[state.at] |= bit
        self._changed()
        return self.board.words.dialect.feedback["putobject"].format(o=what, r=where)

    def _treat(self, action: str, able: int, places: int, rest: str) -> tuple[int, str] | None:
        """The bit of the held object and the feedback, if it can be treated there."""
        pair = self._pair(action, rest)
        if pair is None or pair[0] != self.state.held:
            return None
        number, receptacle, what, where = pair
        if not able >> number & 1 or not places >> receptacle & 1:
            return None
        self._changed()
        return 1 << number, self.board.words.dialect.feedback[action].format(o=what, r=where)

    def _clean(self, rest: str) -> str | None:
        game, state = self.board.game, self.state
        found = self._treat("cleanobject", game.cleanable, game.sinks, rest)
        if found is None:
            return None
        state.clean |= found[0]
        return found[1]

    def _heat(self, rest: str) -> str | None:
        game, state = self.board.game, self.state
        found = self._treat("heatobject", game.heatable, game.microwaves, rest)
        if found is None:
            return None
        state.hot |= found[0]
        state.cool &= ~found[0]
        return found[1]

    def _chill(self, rest: str) -> str | None:
        game, state = self.board.game, self.state
        found = self._treat("coolobject", game.coolable, game.fridges, rest)
        if found is None:
            return None
        state.cool |= found[0]
        state.hot &= ~found[0]
        return found[1]

    def _use(self, name: str) -> str | None:
        number, state = self.board.object_number.get(name), self.state
        if number is None or not self.board.game.toggleable >> number & 1:
            return None
        if not any(state.contents[receptacle] >> number & 1 for receptacle in self.board.at_place[state.at]):
            return None
        state.toggled |= 1 << number
        self._changed()
        return self.board.words.dialect.feedback["toggleobject"].format(o=name)

    def _slice(self, rest: str) -> str | None:
        board, state = self.board, self.state
        what, _, knife = rest.partition(board.words.middle["sliceobject"])
        number, held = board.object_number.get(what), board.object_number.get(knife)
        if number is None or held is None or held != state.held or not board.game.knives >> held & 1:
            return None
        if not (state.lying[state.at] & board.game.sliceable) >> number & 1:
            return None
        state.sliced |= 1 << number
        self._changed()
        return board.words.dialect.feedback["sliceobject"].format(o=what, r=knife)

    def _changed(self) -> None:
        self._admissible = None

    # -- what can be done --------------------------------------------------------------------------------------

    def admissible(self) -> list[str]:
        """Every admissible command, sorted. The list is the caller's to keep."""
        if self._admissible is None:
            walks = self.board.walks(self.state.at)
            local = sorted(self._local_commands())
            at = bisect_left(local, walks[0]) if walks else 0
            self._admissible = local[:at] + walks + local[at:]
        return self._admissible.copy()

    def _local_commands(self) -> list[str]:
        """What can be done without walking."""
        board, state = self.board, self.state
        game, words = board.game, board.words
        begin, middle = words.begin, words.middle
        found = words.always.copy()
        held = state.held
        what = game.objects[held] if held >= 0 else ""
        bit = 1 << held if held >= 0 else 0
        if bit:
            found.append(begin["examineobject"] + what)
        for receptacle in board.at_place[state.at]:
            where = game.receptacles[receptacle]
            found.append(begin["examinereceptacle"] + where)
            reachable = True
            if game.openable >> receptacle & 1:
                reachable = bool(state.opened >> receptacle & 1)
                found.append(begin["closeobject" if reachable else "openobject"] + where)
            contents = state.contents[receptacle]
            if reachable and not bit:
                take, source = begin["pickupobject"], middle["pickupobject"] + where
                found += [take + game.objects[n] + source for n in members(contents & game.pickupable)]
            if contents & game.toggleable:
                found += [begin["toggleobject"] + game.objects[n] for n in members(contents & game.toggleable)]
            if bit:
                if reachable and game.takes[receptacle] & bit:
                    found.append(begin["putobject"] + what + middle["putobject"] + where)
                found += self._treatments(receptacle, bit, what, where)
        if game.knives & bit:
            tail = middle["sliceobject"] + what
            lying = members(state.lying[state.at] & game.sliceable)
            found += [begin["sliceobject"] + game.objects[n] + tail for n in lying]
        return found if len(board.at_place[state.at]) < 2 else list(dict.fromkeys(found))

    def _treatments(self, receptacle: int, bit: int, what: str, where: str) -> list[str]:
        game, words = self.board.game, self.board.words
        return [
            words.begin[action] + what + words.middle[action] + where
            for action, able, places in (
                ("cleanobject", game.cleanable, game.sinks),
                ("heatobject", game.heatable, game.microwaves),
                ("coolobject", game.coolable, game.fridges),
            )
            if able & bit and places >> receptacle & 1
        ]

    # -- snapshots ---------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """The state as numbers and lists of numbers."""
        state = self.state
        return [
            state.at, state.held, state.opened, state.contents, state.taken, state.lying,
            state.clean, state.hot, state.cool, state.toggled, state.sliced,
        ]  # fmt: skip

    def load(self, values: list[Any]) -> None:
        """Goes on from the state of `dump`."""
        self.state = State(*values)
        self._changed()
        self.update_won()

    def close(self) -> None:
        """There is nothing to free."""

    # -- the goal ----------------------------------------------------------------------------------------------

    def update_won(self) -> bool:
        """Looks at the goal anew; to be called after a command that was done."""
        self.won = self._goal_holds()
        return self.won

    def _goal_holds(self) -> bool:
        return all(self._holds(clause) for clause in self.board.game.goal)

    def _holds(self, clause: Clause) -> bool:
        state = self.state
        if clause.kind == "hold":
            return state.held >= 0 and bool(clause.objects >> state.held & 1)
        wanted = clause.objects
        if clause.kind == "light":
            wanted &= state.toggled
            return bool(wanted) and any(state.contents[r] & wanted for r in self.board.at_place[state.at])
        if clause.clean:
            wanted &= state.clean
        if clause.hot:
            wanted &= state.hot
        if clause.cool:
            wanted &= state.cool
        if not wanted:
            return False
        contents, count = state.contents, clause.count
        return any((contents[r] & wanted).bit_count() >= count for r in members(clause.receptacles))


_HANDLERS: Mapping[str, Callable[[Simulator, str], str | None]] = {
    "openobject": Simulator._open,
    "closeobject": Simulator._close,
    "examinereceptacle": Simulator._examine,
    "pickupobject": Simulator._take,
    "putobject": Simulator._put,
    "cleanobject": Simulator._clean,
    "heatobject": Simulator._heat,
    "coolobject": Simulator._chill,
    "toggleobject": Simulator._use,
    "sliceobject": Simulator._slice,
}
