import pytest

from measures import duration, parse_duration, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2, "1.0 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3 * 1024**4, "3.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text


def test_decimal_sizes():
    assert size(1500, binary=False) == "1.5 kB"
    assert size(999, binary=False) == "999 B"
    assert size(1234567, binary=False, digits=2) == "1.23 MB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (61, "1m 1s"),
        (3600, "1h"),
        (3661, "1h 1m"),
        (3601, "1h"),
        (90000, "1d 1h"),
        (-61, "-1m 1s"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_more_or_fewer_parts():
    assert duration(90061, parts=4) == "1d 1h 1m 1s"
    assert duration(90061, parts=1) == "1d"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("1h 30m", 5400), ("2d", 172800), ("1.5h", 5400), ("1m1s", 61), (" 5 s ", 5)],
)
def test_reading_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "1h and 2m", "1h 2", "five"])
def test_text_that_is_no_duration(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1m 1h", "1h 1h"])
def test_units_in_the_wrong_order(text):
    with pytest.raises(ValueError, match="order"):
        parse_duration(text)


def test_round_trip():
    for seconds in (1, 59, 60, 3599, 86399, 86400, 100000):
        assert parse_duration(duration(seconds, parts=4)) == seconds
