"""A template engine."""

from stencil.engine import Template, TemplateError, render

__all__ = ["Template", "TemplateError", "render"]
