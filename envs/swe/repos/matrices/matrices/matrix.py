"""Matrices of fractions."""

from fractions import Fraction


class Singular(ValueError):
    """A matrix without an inverse."""


class Matrix:
    """An immutable matrix, made of rows."""

    def __init__(self, rows):
        self.rows = tuple(tuple(Fraction(value) for value in row) for row in rows)
        if not self.rows or not self.rows[0]:
            raise ValueError("a matrix has at least one row and one column")
        if any(len(row) != len(self.rows[0]) for row in self.rows):
            raise ValueError("rows must have the same length")

    @classmethod
    def identity(cls, size):
        """Ones on the diagonal, zeros elsewhere."""
        return cls([[1 if i == j else 0 for j in range(size)] for i in range(size)])

    @property
    def shape(self):
        """Numbers of rows and columns."""
        return len(self.rows), len(self.rows[0])

    def __eq__(self, other):
        return isinstance(other, Matrix) and self.rows == other.rows

    def __hash__(self):
        return hash(self.rows)

    def __getitem__(self, at):
        row, column = at
        return self.rows[row][column]

    def __repr__(self):
        return "Matrix(" + "; ".join(" ".join(str(value) for value in row) for row in self.rows) + ")"

    def _check_same_shape(self, other):
        if self.shape != other.shape:
            raise ValueError(f"shapes differ: {self.shape} and {other.shape}")

    def __add__(self, other):
        self._check_same_shape(other)
        return Matrix([[a + b for a, b in zip(left, right)] for left, right in zip(self.rows, other.rows)])

    def __sub__(self, other):
        self._check_same_shape(other)
        return Matrix([[a - b for a, b in zip(left, right)] for left, right in zip(self.rows, other.rows)])

    def scale(self, factor):
        """Every value times a number."""
        return Matrix([[value * Fraction(factor) for value in row] for row in self.rows])

    def __matmul__(self, other):
        if self.shape[1] != other.shape[0]:
            raise ValueError(f"cannot multiply {self.shape} by {other.shape}")
        columns = other.transpose().rows
        return Matrix([[sum(a * b for a, b in zip(row, column)) for column in columns] for row in self.rows])

    def __pow__(self, exponent):
        self._check_square()
        if exponent < 0:
            return self.inverse() ** -exponent
        result = Matrix.identity(len(self.rows))
        base = self
        while exponent:
            if exponent % 2 == 1:
                result = result @ base
            base = base @ base
            exponent //= 2
        return result

    def transpose(self):
        """Rows become columns."""
        return Matrix(zip(*self.rows))

    def trace(self):
        """Sum of the diagonal."""
        self._check_square()
        return sum(self.rows[i][i] for i in range(len(self.rows)))

    def minor(self, row, column):
        """The matrix without a row and a column."""
        return Matrix(
            [[value for j, value in enumerate(values) if j != column] for i, values in enumerate(self.rows) if i != row]
        )

    def _check_square(self):
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"not a square matrix: {self.shape}")

    def echelon(self):
        """Reduced row echelon form, the columns of its pivots, and the determinant's factor on the way."""
        rows = [list(row) for row in self.rows]
        pivots = []
        factor = Fraction(1)
        top = 0
        for column in range(len(rows[0])):
            found = next((i for i in range(top, len(rows)) if rows[i][column] != 0), None)
            if found is None:
                continue
            if found != top:
                rows[found], rows[top] = rows[top], rows[found]
                factor = -factor
            pivot = rows[top][column]
            factor *= pivot
            rows[top] = [value / pivot for value in rows[top]]
            for i in range(len(rows)):
                if i != top and rows[i][column] != 0:
                    times = rows[i][column]
                    rows[i] = [a - times * b for a, b in zip(rows[i], rows[top])]
            pivots.append(column)
            top += 1
            if top == len(rows):
                break
        return Matrix(rows), pivots, factor

    def rank(self):
        """Number of independent rows."""
        return len(self.echelon()[1])

    def determinant(self):
        """Zero for a singular matrix."""
        self._check_square()
        _, pivots, factor = self.echelon()
        return factor if len(pivots) == len(self.rows) else Fraction(0)

    def inverse(self):
        """The matrix that gives the identity with this one."""
        self._check_square()
        size = len(self.rows)
        both = Matrix([[*row, *unit] for row, unit in zip(self.rows, Matrix.identity(size).rows)])
        reduced, pivots, _ = both.echelon()
        if pivots != list(range(size)):
            raise Singular("the matrix is singular")
        return Matrix([row[size:] for row in reduced.rows])

    def solve(self, right):
        """The x with self @ x == right, for one solution exactly."""
        values = list(right)
        if len(values) != self.shape[0]:
            raise ValueError("the right side has another length")
        both = Matrix([[*row, value] for row, value in zip(self.rows, values)])
        reduced, pivots, _ = both.echelon()
        unknowns = self.shape[1]
        if unknowns in pivots:
            raise Singular("there is no solution")
        if len(pivots) < unknowns:
            raise Singular("there is more than one solution")
        return [reduced.rows[i][unknowns] for i in range(unknowns)]
