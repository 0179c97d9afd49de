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


def parameter_types(tree: exp.Expr) -> tuple[DataType | None, ...]:
    """The types of $1, $2, ... in order."""
    forms = Forms(tree)
    found: dict[int, DataType | None] = {}
    for node in tree.find_all(exp.Parameter):
        place = int(str(node.this.this))
        found[place] = found.get(place) or _wanted(node, forms)
    return tuple(found.get(place) for place in range(1, max(found, default=0) + 1))


def _wanted(node: exp.Parameter, forms: Forms) -> DataType | None:
    inner: exp.Expr = node
    parent = node.parent
    while isinstance(parent, exp.Paren):
        inner, parent = parent, parent.parent
    if isinstance(parent, exp.Cast):
        return _type(type_name(parent.args["to"]))
    if isinstance(parent, exp.Any) and isinstance(parent.parent, exp.Binary):
        element = _type(forms.of(parent.parent.this))
        return None if element is None else list_of(element)
    if isinstance(parent, exp.In):
        return _type(forms.of(parent.this))
    if isinstance(parent, _COMPARED):
        other = parent.expression if parent.this is inner else parent.this
        return _type(forms.of(other))
    if isinstance(parent, exp.Limit | exp.Offset):
        return types.BIGINT
    return None


def _type(form: str | None) -> DataType | None:
    if form is None:
        return None
    if form.endswith("[]"):
        element = _type(form[:-2])
        return None if element is None else list_of(element)
    if form in REG_TYPES or form in TEXTS:
        # A regclass is given by its name.
        return types.VARCHAR
    return FORMS[form].type if form in FORMS else None
