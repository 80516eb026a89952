"""Sets of half-open intervals."""

from spans.spanset import SpanSet

__all__ = ["SpanSet"]
