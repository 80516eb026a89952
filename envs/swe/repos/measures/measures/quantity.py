"""Numbers that know their unit. A dimension is a tuple of the powers of metre, second and gram."""

_UNITS = {
    "m": (1.0, (1, 0, 0)),
    "km": (1000.0, (1, 0, 0)),
    "cm": (0.01, (1, 0, 0)),
    "mi": (1609.344, (1, 0, 0)),
    "ft": (0.3048, (1, 0, 0)),
    "s": (1.0, (0, 1, 0)),
    "min": (60.0, (0, 1, 0)),
    "h": (3600.0, (0, 1, 0)),
    "g": (1.0, (0, 0, 1)),
    "kg": (1000.0, (0, 0, 1)),
    "lb": (453.59237, (0, 0, 1)),
    "L": (0.001, (3, 0, 0)),
}


class UnitError(ValueError):
    """An unknown unit, or units that do not go together."""


def unit(text):
    """Factor and dimension of a unit such as `km`, `m^2` or `kg*m/s^2`."""
    factor = 1.0
    powers = [0, 0, 0]
    sign = 1
    for part in text.replace("*", " * ").replace("/", " / ").split():
        if part == "*":
            sign = 1
        elif part == "/":
            sign = -1
        elif part == "1":
            continue
        else:
            name, _, power = part.partition("^")
            if name not in _UNITS:
                raise UnitError(f"unknown unit {name!r}")
            exponent = sign * (int(power) if power else 1)
            value, dimension = _UNITS[name]
            factor *= value**exponent
            for at in range(3):
                powers[at] += exponent * dimension[at]
    return factor, tuple(powers)


class Quantity:
    """A number and a unit."""

    def __init__(self, value, unit_text="1"):
        self.value = float(value)
        self.unit = unit_text
        self._factor, self.dimension = unit(unit_text)

    @classmethod
    def parse(cls, text):
        """A quantity such as `3.5 km/h`."""
        number, _, rest = text.strip().partition(" ")
        try:
            value = float(number)
        except ValueError:
            raise UnitError(f"no number in {text!r}") from None
        return cls(value, rest.strip() or "1")

    @property
    def base(self):
        """The value in metres, seconds and grams."""
        return self.value * self._factor

    def to(self, unit_text):
        """The same in another unit."""
        factor, dimension = unit(unit_text)
        if dimension != self.dimension:
            raise UnitError(f"cannot turn {self.unit} into {unit_text}")
        return Quantity(self.base / factor, unit_text)

    def _same(self, other):
        if not isinstance(other, Quantity) or self.dimension != other.dimension:
            raise UnitError(f"{self} and {other} cannot be compared or added")
        return other.to(self.unit)

    def __add__(self, other):
        return Quantity(self.value + self._same(other).value, self.unit)

    def __sub__(self, other):
        return Quantity(self.value - self._same(other).value, self.unit)

    def __mul__(self, other):
        if isinstance(other, Quantity):
            return Quantity(self.value * other.value, f"{self.unit} * {other.unit}")
        return Quantity(self.value * other, self.unit)

    def __truediv__(self, other):
        if isinstance(other, Quantity):
            inverse = other.unit.replace("*", "\0").replace("/", "*").replace("\0", "/")
            return Quantity(self.value / other.value, f"{self.unit} / {inverse}")
        return Quantity(self.value / other, self.unit)

    def __eq__(self, other):
        if not isinstance(other, Quantity) or self.dimension != other.dimension:
            return False
        return abs(self.base - other.base) <= 1e-9 * max(abs(self.base), abs(other.base))

    def __lt__(self, other):
        return self.value < self._same(other).value

    def __le__(self, other):
        return self < other or self == other

    def __repr__(self):
        return f"{self.value:g} {self.unit}"


def convert(value, source, target):
    """A number in one unit as a number in another."""
    return Quantity(value, source).to(target).value
