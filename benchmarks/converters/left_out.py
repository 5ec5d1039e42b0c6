"""Counts what a converter passes over in the files of others: runs that failed, and fields that it does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from workloads.loaded import Record, parse_record


class ForeignRecord(Record):
    """Base of what files of others hold: a field that is not known is kept apart, to be counted."""

    model_config = ConfigDict(extra="allow")


RecordT = TypeVar("RecordT", bound=BaseModel)


@dataclass(slots=True)
class LeftOut:
    """What was passed over: so many runs as they had failed, and so often each field."""

    failed: int = 0
    fields: Counter[str] = field(default_factory=Counter)

    def parse(self, kind: type[RecordT], text: bytes, place: str, tags: Collection[str] = ()) -> RecordT:
        """Parse a record and count the fields that it does not know. Raises InputError "place: field: what"."""
        record = parse_record(kind, text, place, tags)
        self.fields.update(_list_unknown(record))
        return record

    def describe(self) -> Iterator[str]:
        """Say it in a line each."""
        if self.failed:
            yield f"Runs that failed and hold nothing to replay, left out: {self.failed}."
        if self.fields:
            counts = ", ".join(f"{name} {count}" for name, count in self.fields.most_common())
            yield f"Fields that are not read, passed over: {counts}."


def _list_unknown(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _list_unknown(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from _list_unknown(each)
