"""What every section of a configuration is made of."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A frozen section that refuses keys it does not know.

    TOML has no null: the text "none" stands for it wherever the field may be none, and in free arguments.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: cls._without_none(key, value) for key, value in data.items()}

    @classmethod
    def _without_none(cls, key: str, value: Any) -> Any:
        field = cls.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is dict and isinstance(value, dict):
            return {name: None if item == "none" else item for name, item in value.items()}
        may_be_none = field is None or type(None) in get_args(field.annotation)
        return None if value == "none" and may_be_none else value
