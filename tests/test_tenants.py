"""Who is a tenant, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agentcache.config_reader import read_config, read_knobs
from agentcache.errors import InputError
from agentcache.tenants import UNNAMED, Tenants, make_digest

KEY = "sk-secret"


def refuse(tenants: Any) -> str:
    with pytest.raises(InputError) as error:
        read_config({"agentcache": {"tenants": tenants}})
    text = str(error.value)
    assert "\n" not in text
    return text.removeprefix("additional_config: agentcache.tenants")


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "heavy"])
def test_a_weight_is_a_number_above_zero(weight: object) -> None:
    assert refuse({"known": {"red": {"weight": weight}}}).startswith(".known.red.weight: ")


@pytest.mark.parametrize(
    ("tenants", "field"),
    [
        ({"known": {"red": {"limit": 0}}}, ".known.red.limit"),
        ({"known": {"red": {"wieght": 1}}}, ".known.red.wieght"),
        ({"known": {"": {}}}, ".known."),
        ({"known": {"a b": {}}}, ".known.a b"),
        ({"by": "ip"}, ".by"),
        ({"by": "header:a b"}, ".by"),
        ({"others": {"weight": 0}}, ".others.weight"),
        ({"known": {f"t{number}": {} for number in range(10_001)}}, ".known"),
        ({"known": {"other": {}}}, ": known.other"),
        ({"known": {"red": {"id": "x"}, "blue": {"id": "x"}}}, ": known.blue.id"),
        ({"known": {"red": {}, "blue": {"id": "red"}}}, ": known.blue.id"),
        (3, ""),
    ],
)
def test_bad_input_is_refused_by_the_name_of_its_field(tenants: Any, field: str) -> None:
    assert refuse(tenants).startswith(field)


def test_a_name_is_given_once() -> None:
    with pytest.raises(InputError, match="tenants: red is given twice"):
        read_knobs(['tenants={"known": {"red": {"weight": 1}, "red": {"weight": 2}}}'])


def test_no_salt_or_key_is_kept() -> None:
    tenants = Tenants.model_validate({"by": "api_key", "known": {"red": {"id": KEY}}})
    assert KEY not in json.dumps(tenants.model_dump())
    again = Tenants.model_validate(tenants.model_dump())
    assert again == tenants, "a digest stands for itself"
    assert tenants.knows(KEY)
    assert tenants.find_share(make_digest(KEY))[0] == "red"


@pytest.mark.parametrize("own", [None, "", "own salt", "-" * 64, make_digest("red")[7:]])
def test_the_salt_of_another_tenant_cannot_be_made(own: str | None) -> None:
    tenants = Tenants(by="header:x-team")
    assert tenants.find_id(tenants.make_salt("red", own)) == make_digest("red")
    assert tenants.find_id(tenants.make_salt(None, own)) == ""


def test_salts_stay_as_they_are_where_they_tell_tenants_apart() -> None:
    tenants = Tenants()
    assert [tenants.make_salt("a key", salt) for salt in (None, "s")] == [None, "s"]
    # A digest as a salt does not stand for another's.
    assert tenants.find_id("s") == make_digest("s") != tenants.find_id(make_digest("s"))
    assert tenants.find_share(tenants.find_id(None))[0] == UNNAMED
