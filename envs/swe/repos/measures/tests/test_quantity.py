import pytest

from measures import Quantity, UnitError, convert


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        (1, "km", "m", 1000),
        (1, "mi", "km", 1.609344),
        (90, "min", "h", 1.5),
        (36, "km/h", "m/s", 10),
        (2, "m^2", "cm^2", 20000),
        (1, "L", "cm^3", 1000),
        (1, "kg*m/s^2", "g*cm/s^2", 100000),
    ],
)
def test_conversion(value, source, target, result):
    assert convert(value, source, target) == pytest.approx(result)


def test_units_that_do_not_go_together():
    with pytest.raises(UnitError, match="cannot turn m into s"):
        convert(1, "m", "s")
    with pytest.raises(UnitError, match="unknown unit 'furlong'"):
        Quantity(1, "furlong")


def test_parsing():
    assert Quantity.parse(" 3.5 km/h ").unit == "km/h"
    assert Quantity.parse("-2 kg") == Quantity(-2000, "g")
    assert Quantity.parse("7").dimension == (0, 0, 0)
    with pytest.raises(UnitError, match="no number"):
        Quantity.parse("km 3")


def test_sums_keep_the_first_unit():
    total = Quantity(1, "km") + Quantity(500, "m")
    assert (total.value, total.unit) == (1.5, "km")
    left = Quantity(1, "h") - Quantity(15, "min")
    assert (left.value, left.unit) == (0.75, "h")


def test_sums_of_different_dimensions():
    with pytest.raises(UnitError, match="cannot be"):
        Quantity(1, "km") + Quantity(1, "s")
    with pytest.raises(UnitError):
        Quantity(1, "km") - 1


def test_products_and_quotients():
    area = Quantity(2, "m") * Quantity(3, "m")
    assert area == Quantity(6, "m^2")
    assert (Quantity(2, "m") * 4).value == 8
    speed = Quantity(100, "km") / Quantity(2, "h")
    assert speed == Quantity(50, "km/h")
    assert (Quantity(9, "m") / 3).value == 3


def test_division_by_a_compound_unit():
    time = Quantity(100, "km") / Quantity(50, "km/h")
    assert time == Quantity(2, "h")
    assert Quantity(6, "m") / Quantity(2, "m * s") == Quantity(3, "1/s")


def test_comparison():
    assert Quantity(1, "km") == Quantity(1000, "m")
    assert Quantity(1, "km") != Quantity(1000, "s")
    assert Quantity(1, "km") < Quantity(1, "mi")
    assert not Quantity(1, "mi") < Quantity(1, "km")
    assert Quantity(1, "km") <= Quantity(1000, "m")
    assert not Quantity(1001, "m") <= Quantity(1, "km")
    assert Quantity(1, "m") != Quantity(1.001, "m")


def test_text():
    assert repr(Quantity(1500, "m").to("km")) == "1.5 km"
