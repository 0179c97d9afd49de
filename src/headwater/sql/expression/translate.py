"""From sqlglot's tree to Spark SQL: the table of all nodes that have a meaning here."""

from sqlglot import exp

from headwater.model import types
from headwater.sql.expression import (
    arrays,
    call_rules,
    dates,
    json_building,
    json_values,
    number_functions,
    strings,
    text_functions,
)
from headwater.sql.expression import operator_rules as rules
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import Rule, Surroundings, Translator
from headwater.sql.expression.typed import NULL


def translator(text: Text, around: Surroundings) -> Translator:
    """A translator for the expressions of one query."""
    return Translator(text, around, _NODES)


_NODES: dict[type[exp.Expr], Rule] = {
    exp.Column: rules.column_rule,
    exp.Literal: call_rules.literal_rule,
    exp.Null: lambda t, node: NULL,
    exp.Boolean: rules.boolean_rule,
    exp.ByteString: rules.bytes_rule,
    exp.Paren: lambda t, node: t(node.this),
    exp.Alias: lambda t, node: t(node.this),
    exp.Parameter: rules.parameter_rule,
    exp.Collate: rules.collate_rule,
    exp.Neg: rules.negate_rule,
    exp.Add: rules.add_rule,
    exp.Sub: rules.subtract_rule,
    exp.Mul: rules.multiply_rule,
    exp.Div: rules.divide_rule,
    exp.Mod: rules.modulo_rule,
    exp.Pow: rules.two_rule(number_functions.power),
    exp.Sqrt: rules.root_rule("sqrt"),
    exp.Cbrt: rules.root_rule("cbrt"),
    exp.HexString: rules.digits_rule(16),
    exp.BitString: rules.digits_rule(2),
    exp.BitwiseAnd: rules.bits_rule("&"),
    exp.BitwiseOr: rules.bits_rule("|"),
    exp.BitwiseXor: rules.bits_rule("^"),
    exp.BitwiseNot: rules.not_bits_rule,
    exp.BitwiseLeftShift: rules.shift_rule("shiftleft"),
    exp.BitwiseRightShift: rules.shift_rule("shiftright"),
    exp.EQ: rules.compare_rule("="),
    exp.NEQ: rules.compare_rule("<>"),
    exp.LT: rules.compare_rule("<"),
    exp.LTE: rules.compare_rule("<="),
    exp.GT: rules.compare_rule(">"),
    exp.GTE: rules.compare_rule(">="),
    exp.NullSafeEQ: rules.distinct_rule(negated=True),
    exp.NullSafeNEQ: rules.distinct_rule(negated=False),
    exp.And: rules.logic_rule("and"),
    exp.Or: rules.logic_rule("or"),
    exp.Not: rules.not_rule,
    exp.Is: rules.is_rule,
    exp.Between: rules.between_rule,
    exp.In: rules.in_rule,
    exp.Like: rules.like_rule(fold=False),
    exp.ILike: rules.like_rule(fold=True),
    exp.Escape: rules.escape_rule,
    exp.RegexpLike: rules.two_rule(text_functions.matches),
    exp.RegexpILike: lambda t, node: text_functions.matches(
        t(node.this), t(node.expression), t.text, node, fold=True
    ),
    exp.SimilarTo: lambda t, node: text_functions.similar_to(
        t(node.this), t(node.expression), "\\", t.text, node
    ),
    exp.StartsWith: rules.starts_rule,
    exp.Case: rules.case_rule,
    exp.Cast: call_rules.cast_rule,
    exp.DPipe: rules.pipe_rule,
    exp.Extract: lambda t, node: dates.extract(node.this.name, t(node.expression), t.text, node),
    exp.Substring: rules.substring_rule,
    exp.Trim: rules.trim_rule,
    exp.StrPosition: lambda t, node: strings.position(
        t(node.args["substr"]), t(node.this), t.text, node
    ),
    exp.Overlay: rules.overlay_rule,
    exp.AtTimeZone: lambda t, node: dates.at_time_zone(
        t(node.this), t(node.args["zone"]), t.text, node
    ),
    exp.Overlaps: rules.overlaps_rule,
    exp.Interval: call_rules.interval_rule,
    exp.Array: lambda t, node: arrays.array(t.all(node.expressions), t.text, node),
    exp.Bracket: rules.bracket_rule,
    exp.Dot: rules.field_rule,
    exp.ArrayContainsAll: rules.contains_rule,
    exp.ArrayContainedBy: rules.contains_rule,
    exp.ArrayOverlaps: rules.two_rule(arrays.overlaps),
    exp.JSONExtract: json_values.extract_rule,
    exp.JSONExtractScalar: json_values.extract_rule,
    exp.JSONBExtract: json_values.extract_rule,
    exp.JSONBExtractScalar: json_values.extract_rule,
    exp.JSONBContainsTopKey: rules.two_rule(json_values.has_key),
    exp.JSONBContainsAnyTopKeys: lambda t, node: json_values.has_keys(
        t(node.this), t(node.expression), t.text, node, every=False
    ),
    exp.JSONBContainsAllTopKeys: lambda t, node: json_values.has_keys(
        t(node.this), t(node.expression), t.text, node, every=True
    ),
    exp.JSONBDeleteAtPath: rules.two_rule(json_building.delete_path),
    exp.Anonymous: call_rules.call_rule,
    exp.CurrentDate: rules.clock_rule("current_date()", types.DATE),
    exp.CurrentTimestamp: rules.clock_rule("current_timestamp()", types.TIMESTAMPTZ),
    exp.Localtimestamp: rules.clock_rule("localtimestamp()", types.TIMESTAMP),
}
