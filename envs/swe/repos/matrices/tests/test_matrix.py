from fractions import Fraction

import pytest

from matrices import Matrix, Singular

A = Matrix([[1, 2], [3, 4]])
B = Matrix([[0, 1], [5, 2]])


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [3]]])
def test_rows_that_are_no_matrix(rows):
    with pytest.raises(ValueError, match="row"):
        Matrix(rows)


def test_sums_and_differences():
    assert A + B == Matrix([[1, 3], [8, 6]])
    assert A - B == Matrix([[1, 1], [-2, 2]])


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shapes differ"):
        A + Matrix([[1, 2]])
    with pytest.raises(ValueError, match="shapes differ"):
        A - Matrix([[1], [2]])


def test_products():
    assert A @ B == Matrix([[10, 5], [20, 11]])
    assert Matrix([[1, 2, 3]]) @ Matrix([[1], [2], [3]]) == Matrix([[14]])
    assert Matrix([[1], [2]]) @ Matrix([[3, 4]]) == Matrix([[3, 4], [6, 8]])


def test_products_that_do_not_exist():
    with pytest.raises(ValueError, match="cannot multiply"):
        Matrix([[1, 2]]) @ Matrix([[1, 2]])


def test_scaling_is_exact():
    assert A.scale("1/3")[1, 0] == 1
    assert A.scale(Fraction(1, 3))[0, 0] == Fraction(1, 3)


def test_identity_changes_nothing():
    assert A @ Matrix.identity(2) == A
    assert Matrix.identity(3).trace() == 3


def test_powers():
    assert A**0 == Matrix.identity(2)
    assert A**1 == A
    assert A**5 == A @ A @ A @ A @ A
    assert A**-2 @ A**2 == Matrix.identity(2)


def test_transposition():
    assert Matrix([[1, 2, 3], [4, 5, 6]]).transpose() == Matrix([[1, 4], [2, 5], [3, 6]])


def test_trace():
    assert A.trace() == 5
    with pytest.raises(ValueError, match="square"):
        Matrix([[1, 2]]).trace()


def test_minor():
    assert Matrix([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).minor(0, 1) == Matrix([[4, 6], [7, 9]])


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        ([[7]], 7),
        ([[1, 2], [3, 4]], -2),
        ([[0, 1], [1, 0]], -1),
        ([[1, 2], [2, 4]], 0),
        ([[2, 0, 1], [1, 3, 2], [1, 1, 4]], 18),
    ],
)
def test_determinants(rows, value):
    assert Matrix(rows).determinant() == value


def test_determinant_is_multiplicative():
    assert (A @ B).determinant() == A.determinant() * B.determinant()


def test_rank():
    assert Matrix([[1, 2], [2, 4]]).rank() == 1
    assert Matrix([[0, 0], [0, 0]]).rank() == 0
    assert Matrix([[0, 1, 2], [0, 2, 5]]).rank() == 2
    assert Matrix([[1], [2], [3]]).rank() == 1


def test_inverse():
    assert A.inverse() @ A == Matrix.identity(2)
    assert Matrix([[0, 2], [1, 0]]).inverse() == Matrix([[0, 1], [Fraction(1, 2), 0]])


def test_singular_matrices_have_no_inverse():
    with pytest.raises(Singular):
        Matrix([[1, 2], [2, 4]]).inverse()
    with pytest.raises(ValueError, match="square"):
        Matrix([[1, 2]]).inverse()


def test_systems():
    assert A.solve([5, 11]) == [1, 2]
    assert Matrix([[1, 0], [0, 1], [1, 1]]).solve([1, 2, 3]) == [1, 2]


def test_systems_without_a_solution():
    with pytest.raises(Singular, match="no solution"):
        Matrix([[1, 1], [1, 1]]).solve([1, 2])


def test_systems_with_many_solutions():
    with pytest.raises(Singular, match="more than one"):
        Matrix([[1, 1], [2, 2]]).solve([1, 2])


def test_right_sides_of_another_length():
    with pytest.raises(ValueError, match="length"):
        A.solve([1])


def test_text():
    assert repr(Matrix([[1, "1/2"], [0, 3]])) == "Matrix(1 1/2; 0 3)"
    assert hash(A) == hash(Matrix([[1, 2], [3, 4]]))
