"""The types of a query's parameters, from where they stand.

A parameter that is cast has the type of the cast, one that is compared with a column has the
column's. What remains takes any text.
"""

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, list_of
from headwater.system.forms import REG_TYPES, TEXTS, Forms, type_name
from headwater.system.relations import FORMS

_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.GT, exp.LTE, exp.GTE, exp.Like, exp.ILike,
             exp.RegexpLike, exp.RegexpILike)  # fmt: skip


def parameter_forms(tree: exp.Expr) -> tuple[str | None, ...]:
    """PostgreSQL's short names of the types of $1, $2, ... in order, where they are known."""
    forms = Forms(tree)
    found: dict[int, str | None] = {}
    for node in tree.find_all(exp.Parameter):
        place = int(str(node.this.this))
        found[place] = found.get(place) or _wanted(node, forms)
    return tuple(found.get(place) for place in range(1, max(found, default=0) + 1))


def _wanted(node: exp.Parameter, forms: Forms) -> str | None:
    inner: exp.Expr = node
    parent = node.parent
    while isinstance(parent, exp.Paren):
        inner, parent = parent, parent.parent
    if isinstance(parent, exp.Cast):
        return type_name(parent.args["to"])
    if isinstance(parent, exp.Any) and isinstance(parent.parent, exp.Binary):
        element = forms.of(parent.parent.this)
        return None if element is None else f"{element}[]"
    if isinstance(parent, exp.In):
        return forms.of(parent.this)
    if isinstance(parent, _COMPARED):
        other = parent.expression if parent.this is inner else parent.this
        return forms.of(other)
    if isinstance(parent, exp.Limit | exp.Offset):
        return "int8"
    return None


def parameter_type(form: str | None) -> DataType | None:
    """The type of a parameter's values; None takes any text."""
    if form is None:
        return None
    if form.endswith("[]"):
        element = parameter_type(form[:-2])
        return None if element is None else list_of(element)
    if form == "oid":
        # Unsigned, hence wider than the columns that hold one.
        return types.BIGINT
    if form in REG_TYPES or form in TEXTS:
        # A regclass is given by its name.
        return types.VARCHAR
    return FORMS[form].type if form in FORMS else None
