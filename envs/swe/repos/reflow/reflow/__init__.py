"""Text to lines of a given width."""

from reflow.wrap import columns, dedent, fill, justify, shorten, wrap

__all__ = ["columns", "dedent", "fill", "justify", "shorten", "wrap"]
