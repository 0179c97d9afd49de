"""Casts, where PostgreSQL's types differ from those of the embedded database."""

from sqlglot import exp

from headwater.system.calls import call, cast, text
from headwater.system.forms import NUMBERS, REG_TYPES, TEXTS, VECTORS, Forms, type_name
from headwater.system.functions import array_elements
from headwater.system.relations import FORMS

_TYPES = {
    "date": "DATE",
    "time": "TIME",
    "uuid": "UUID",
    "numeric": "DECIMAL(38, 9)",
    "xid8": "BIGINT",
    "cid": "BIGINT",
    "tid": "VARCHAR",
    "aclitem": "VARCHAR",
    "money": "VARCHAR",
}


def elements(array: str) -> list[exp.Expr]:
    """The elements of an array's text, as literals."""
    return [exp.Null() if each is None else text(each) for each in array_elements(array)]


def duckdb_type(name: str) -> str:
    """The type of the embedded database for one of PostgreSQL, by its short name."""
    if name.endswith("[]"):
        return f"{duckdb_type(name[:-2])}[]"
    if name in REG_TYPES or name.startswith("reg"):
        return "UINTEGER"
    if name in TEXTS:
        return "VARCHAR"
    if name in _TYPES:
        return _TYPES[name]
    return FORMS[name].duckdb if name in FORMS else "VARCHAR"


def cast_to(node: exp.Expr, forms: Forms) -> exp.Expr:
    """The cast as the embedded database computes it."""
    target = type_name(node.args["to"])
    inner: exp.Expr = node.this
    source = forms.of(inner)
    if target in REG_TYPES:
        return forms.note(_to_number(inner, source, REG_TYPES[target]), target)
    if target in TEXTS:
        return forms.note(_to_text(inner, source), target)
    if target.endswith("[]") or target in VECTORS:
        return forms.note(_to_array(inner, source, duckdb_type(target)), target)
    return forms.note(cast(inner, duckdb_type(target)), target)


def _to_number(inner: exp.Expr, source: str | None, function: str) -> exp.Expr:
    plain = inner.this if isinstance(inner, exp.Paren) else inner
    is_number = isinstance(plain, exp.Literal) and not plain.is_string
    if is_number or source in NUMBERS or isinstance(plain, exp.Null):
        return cast(inner, "UINTEGER")
    return call(function, cast(inner, "VARCHAR"))


def _to_text(inner: exp.Expr, source: str | None) -> exp.Expr:
    if source in REG_TYPES:
        return call(f"{REG_TYPES[source]}_shown", inner)
    if source in VECTORS:
        return call("array_to_string", cast(inner, "VARCHAR[]"), text(" "))
    if source is not None and source.endswith("[]"):
        joined = call("array_to_string", cast(inner, "VARCHAR[]"), text(","))
        return call("concat", text("{"), joined, text("}"))
    return cast(inner, "VARCHAR")


def _to_array(inner: exp.Expr, source: str | None, type_: str) -> exp.Expr:
    plain = inner.this if isinstance(inner, exp.Paren) else inner
    if isinstance(plain, exp.Literal) and plain.is_string:
        return cast(exp.Array(expressions=elements(str(plain.this))), type_)
    if source in TEXTS:
        return cast(call("hw_array", inner), type_)
    return cast(inner, type_)
