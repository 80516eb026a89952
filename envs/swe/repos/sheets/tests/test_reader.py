import pytest

from sheets import Dialect, SheetError, guess_delimiter, read, read_records


def test_plain_rows():
    assert read("a,b\nc,d\n") == [["a", "b"], ["c", "d"]]


def test_the_last_line_needs_no_end():
    assert read("a,b\nc,d") == [["a", "b"], ["c", "d"]]
    assert read("a,b\nc,") == [["a", "b"], ["c", ""]]


def test_all_line_ends():
    assert read("a\r\nb\rc\nd") == [["a"], ["b"], ["c"], ["d"]]


def test_empty_fields():
    assert read(",a,\n") == [["", "a", ""]]


def test_empty_lines_are_left_out():
    assert read("\na\n\n\nb\n") == [["a"], ["b"]]


def test_quotes():
    assert read('"a,b",c\n') == [["a,b", "c"]]
    assert read('"say ""hi""",x') == [['say "hi"', "x"]]
    assert read('""') == []
    assert read('"",x') == [["", "x"]]


def test_quoted_line_breaks():
    assert read('"a\nb",c\nd,e') == [["a\nb", "c"], ["d", "e"]]


def test_a_quote_inside_a_field_is_a_character():
    assert read('5" disk,x') == [['5" disk', "x"]]


def test_spaces():
    assert read(" a , b ") == [[" a ", " b "]]
    assert read(" a , b ", Dialect(strip=True)) == [["a", "b"]]
    assert read('" a " , b', Dialect(strip=True)) == [[" a ", "b"]]


def test_other_marks():
    assert read("a;'b;c'", Dialect(";", "'")) == [["a", "b;c"]]


def test_comments():
    assert read("# note\na,b\n#x,y\n", Dialect(comment="#")) == [["a", "b"]]
    assert read("# note\n") == [["# note"]]


def test_a_quote_that_is_not_closed():
    with pytest.raises(SheetError, match="line 2: a quote is not closed") as caught:
        read('a\n"b\nc\n')
    assert caught.value.line == 2


def test_text_after_a_quote():
    with pytest.raises(SheetError, match="line 3: text after"):
        read('a\n"x\n"b\n')


@pytest.mark.parametrize(("delimiter", "quote"), [(",", ","), (",,", '"'), (",", "")])
def test_dialects_that_make_no_sense(delimiter, quote):
    with pytest.raises(ValueError, match="delimiter and quote"):
        Dialect(delimiter, quote)


def test_records():
    text = "name,age\nann,3\nbob,5\n"
    assert read_records(text) == [{"name": "ann", "age": "3"}, {"name": "bob", "age": "5"}]
    assert read_records("") == []
    assert read_records("a,b\n") == []


def test_missing_fields_have_defaults():
    assert read_records("a,b,c\n1\n", defaults={"b": "x"}) == [{"a": "1", "b": "x", "c": ""}]


def test_too_many_fields():
    with pytest.raises(SheetError, match="line 3: 3 fields for 2 names"):
        read_records("a,b\n1,2\n1,2,3\n")


def test_names_must_differ():
    with pytest.raises(SheetError, match="twice"):
        read_records("a,a\n1,2\n")


@pytest.mark.parametrize(
    ("text", "delimiter"), [("a,b\nc,d", ","), ("a;b,c\nd;e", ";"), ("a,b|c|d\ne,f|g|h\n\n", "|"), ("a\tb", "\t")]
)
def test_guessing(text, delimiter):
    assert guess_delimiter(text) == delimiter


def test_nothing_to_guess():
    with pytest.raises(ValueError, match="no delimiter"):
        guess_delimiter("a\nb,c")
