import pytest

from sheets import Dialect, read, write, write_records


def test_plain_fields_have_no_quotes():
    assert write([["a", 1], ["b", 2.5]]) == "a,1\nb,2.5\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [("a,b", '"a,b"'), ('a"b', '"a""b"'), ("a\nb", '"a\nb"'), ("a\rb", '"a\rb"'), (" a", '" a"'), ("a ", '"a "')],
)
def test_fields_that_need_quotes(value, text):
    assert write([[value, "x"]]) == f"{text},x\n"


def test_none_is_empty():
    assert write([[None, "x"]]) == ",x\n"


def test_a_lone_empty_field_is_seen():
    assert write([[""]]) == '""\n'


def test_line_ends():
    assert write([["a"], ["b"]], newline="\r\n") == "a\r\nb\r\n"


def test_what_is_written_is_read():
    rows = [["a,b", 'say "hi"', "x\ny"], ["", " z ", "1"]]
    for dialect in (None, Dialect(";", "'")):
        assert read(write(rows, dialect), dialect) == rows


def test_records():
    records = [{"a": 1}, {"b": 2, "a": 3}]
    assert write_records(records) == "a,b\n1,\n3,2\n"
    assert write_records(records, names=["b"]) == 'b\n""\n2\n'
