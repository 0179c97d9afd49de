"""to_char, to_date and to_timestamp: PostgreSQL's patterns, piece by piece, in Spark.

A pattern is a constant. Each of its pieces becomes a text of its own when a time is written, and
a part of a regular expression when one is read. Names of days and months are English.
"""

from dataclasses import dataclass

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.coercion import DECIMALS, FLOATS, INTEGERS
from headwater.sql.expression.interval_text import parts_of
from headwater.sql.expression.number_patterns import number_text
from headwater.sql.expression.typed import Typed, made, string_literal

_STAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_WORDS = sorted(
    (
        "YYYY YYY YY Y IYYY IYY IY I HH24 HH12 HH MI SSSSS SSSS SS MS US AM PM A.M. P.M. MM "
        "MONTH MON DAY DY DDD IDDD DD D ID WW IW W Q CC J TZ OF TZH TZM Y,YYY"
    ).split(),
    key=len,
    reverse=True,
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word of a pattern as written, or text that stands for itself (`word` is empty)."""

    word: str
    text: str
    filled: bool = True
    ordinal: str = ""


def _pieces(call: Call, pattern: str) -> list[_Piece]:
    found: list[_Piece] = []
    at, fill = 0, True
    while at < len(pattern):
        if pattern[at : at + 2].upper() == "FM":
            fill, at = False, at + 2
            continue
        if pattern[at] == '"':
            end = pattern.find('"', at + 1)
            end = len(pattern) if end < 0 else end
            found.append(_Piece("", pattern[at + 1 : end]))
            at = end + 1
            continue
        word = next((each for each in _WORDS if pattern[at:].upper().startswith(each)), "")
        if not word:
            if pattern[at].isalpha() and pattern[at].upper() not in "TZ":
                call.refuse(f"the pattern {pattern!r} is not supported")
            found.append(_Piece("", pattern[at]))
            at += 1
            continue
        text = pattern[at : at + len(word)]
        at += len(word)
        ordinal = pattern[at : at + 2] if pattern[at : at + 2].lower() == "th" else ""
        at += len(ordinal)
        found.append(_Piece(word, text, fill, ordinal))
        fill = True
    return found


def _pattern_of(call: Call, place: int) -> str:
    arg = call.args[place]
    pattern = arg.literal if arg.type is None else arg.constant
    if pattern is None:
        call.refuse(f"the pattern of {call.name} must be a constant")
    return pattern


_NUMBERS = {
    "YYYY": ("year({0})", 4), "YYY": ("year({0}) % 1000", 3), "YY": ("year({0}) % 100", 2),
    "Y": ("year({0}) % 10", 1), "IYYY": ("extract(yearofweek from {0})", 4),
    "IY": ("extract(yearofweek from {0}) % 100", 2), "HH24": ("hour({0})", 2),
    "HH12": ("((hour({0}) + 11) % 12 + 1)", 2), "HH": ("((hour({0}) + 11) % 12 + 1)", 2),
    "MI": ("minute({0})", 2), "SS": ("second({0})", 2), "MM": ("month({0})", 2),
    "DDD": ("dayofyear({0})", 3), "DD": ("day({0})", 2), "D": ("dayofweek({0})", 1),
    "ID": ("(weekday({0}) + 1)", 1), "WW": ("((dayofyear({0}) - 1) div 7 + 1)", 2),
    "IW": ("weekofyear({0})", 2), "W": ("((day({0}) - 1) div 7 + 1)", 1),
    "Q": ("quarter({0})", 1), "CC": ("((year({0}) + 99) div 100)", 2),
    "J": ("(datediff({0}, DATE'2000-01-01') + 2451545)", 1),
    "SSSS": ("(hour({0}) * 3600 + minute({0}) * 60 + second({0}))", 1),
    "SSSSS": ("(hour({0}) * 3600 + minute({0}) * 60 + second({0}))", 1),
    "US": ("(unix_micros(cast({0} as timestamp)) - "
           "unix_micros(date_trunc('second', cast({0} as timestamp))))", 6),
    "MS": ("((unix_micros(cast({0} as timestamp)) - "
           "unix_micros(date_trunc('second', cast({0} as timestamp)))) div 1000)", 3),
}  # fmt: skip
_NAMES = {"MONTH": ("MMMM", 9), "MON": ("MMM", 0), "DAY": ("EEEE", 9), "DY": ("EEE", 0)}


def _written(call: Call, piece: _Piece, stamp: str) -> str:
    if not piece.word:
        return string_literal(piece.text)
    if piece.word in _NUMBERS:
        template, width = _NUMBERS[piece.word]
        return _number(template.format(stamp), width if piece.filled else 1, piece.ordinal)
    if piece.word in _NAMES:
        return _name(piece, stamp)
    if piece.word in ("AM", "PM", "A.M.", "P.M."):
        dots = "." in piece.word
        morning, evening = ("A.M.", "P.M.") if dots else ("AM", "PM")
        if piece.text.islower():
            morning, evening = morning.lower(), evening.lower()
        return f"if(hour({stamp}) < 12, '{morning}', '{evening}')"
    if piece.word == "TZ":
        return "'utc'" if piece.text.islower() else "'UTC'"
    if piece.word == "OF":
        return "'+00'"
    call.refuse(f"{piece.text!r} in a pattern is not supported")


def _number(value: str, width: int, ordinal: str) -> str:
    text = f"cast({value} as string)"
    if width > 1:
        text = f"lpad({text}, greatest({width}, length({text})), '0')"
    if not ordinal:
        return text
    last, teens = f"({value}) % 10", f"({value}) % 100 between 11 and 13"
    ending = (
        f"case when {teens} then 'th' when {last} = 1 then 'st' when {last} = 2 then 'nd' "
        f"when {last} = 3 then 'rd' else 'th' end"
    )
    if ordinal.isupper():
        ending = f"upper({ending})"
    return f"concat({text}, {ending})"


def _name(piece: _Piece, stamp: str) -> str:
    java, width = _NAMES[piece.word]
    name = f"date_format({stamp}, '{java}')"
    if piece.text.isupper():
        name = f"upper({name})"
    elif piece.text.islower():
        name = f"lower({name})"
    return f"rpad({name}, {width}, ' ')" if width and piece.filled else name


def _to_char(call: Call) -> Typed:
    call.count(2)
    value, pattern = call.args[0], _pattern_of(call, 1)
    kind = value.known.kind
    if value.type is not None and kind in (*INTEGERS, *DECIMALS, *FLOATS):
        return number_text(call, value, pattern)
    if kind is Kind.INTERVAL:
        return _interval_text(call, value, pattern)
    if value.type is None or kind not in (Kind.DATE, *_STAMPS):
        call.no_such()
    stamp = f"cast({value.text} as timestamp_ntz)"
    parts = [_written(call, piece, stamp) for piece in _pieces(call, pattern)]
    body = f"concat({', '.join(parts)})" if parts else "''"
    return made(f"if({value.text} is null, null, {body})", types.VARCHAR, value)


def _interval_text(call: Call, value: Typed, pattern: str) -> Typed:
    parts = parts_of(value)
    numbers = {
        "YYYY": (f"{parts.months} div 12L", 4), "MM": (f"{parts.months} % 12L", 2),
        "DD": (parts.days, 2), "HH24": (f"{parts.micros} div 3600000000L", 2),
        "MI": (f"({parts.micros} div 60000000L) % 60L", 2),
        "SS": (f"({parts.micros} div 1000000L) % 60L", 2),
        "MS": (f"({parts.micros} div 1000L) % 1000L", 3), "US": (f"{parts.micros} % 1000000L", 6),
    }  # fmt: skip
    texts = []
    for piece in _pieces(call, pattern):
        if piece.word and piece.word not in numbers:
            call.refuse(f"{piece.text!r} in a pattern for an interval is not supported")
        if piece.word:
            number, width = numbers[piece.word]
            texts.append(_number(number, width if piece.filled else 1, ""))
        else:
            texts.append(string_literal(piece.text))
    body = f"concat({', '.join(texts)})" if texts else "''"
    return made(f"if({value.text} is null, null, {body})", types.VARCHAR, value)


_READ = {
    "YYYY": r"(\d{4})", "MM": r"(\d{1,2})", "DD": r"(\d{1,2})", "HH24": r"(\d{1,2})",
    "HH12": r"(\d{1,2})", "HH": r"(\d{1,2})", "MI": r"(\d{1,2})", "SS": r"(\d{1,2})",
    "MS": r"(\d{1,3})", "US": r"(\d{1,6})", "AM": r"([AaPp][Mm])", "PM": r"([AaPp][Mm])",
    "MON": r"([A-Za-z]{3})", "MONTH": r"([A-Za-z]+)",
}  # fmt: skip
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()


def _read(call: Call) -> tuple[Typed, str]:
    """A text that is read by a pattern, and the moment in it as a timestamp without zone."""
    call.count(2)
    value, pattern = call.arg(0, types.VARCHAR), _pattern_of(call, 1)
    regular = r"^\s*"
    places: dict[str, int] = {}
    for piece in _pieces(call, pattern):
        if not piece.word:
            # PostgreSQL lets any separators stand for any others.
            regular += r"[\s\p{Punct}]*" if not piece.text.isalnum() else "."
            continue
        if piece.word not in _READ or piece.word in places:
            call.refuse(f"{piece.text!r} in a pattern to read is not supported")
        places[piece.word] = len(places) + 1
        regular += _READ[piece.word]
    if "YYYY" not in places:
        call.refuse("a pattern to read needs YYYY")
    wanted = string_literal(regular)

    def group(*words: str, default: str = "1") -> str:
        for word in words:
            if word in places:
                return f"regexp_extract({value.text}, {wanted}, {places[word]})"
        return default

    month = f"cast({group('MM')} as int)"
    if "MON" in places or "MONTH" in places:
        short = f"lower(left({group('MON', 'MONTH')}, 3))"
        listed = ", ".join(f"'{name}'" for name in _MONTHS)
        month = f"cast(array_position(array({listed}), {short}) as int)"
    hour = f"cast({group('HH24', 'HH12', 'HH', default='0')} as int)"
    if "AM" in places or "PM" in places:
        late = f"(lower({group('AM', 'PM')}) = 'pm')"
        hour = f"({hour} % 12 + if({late}, 12, 0))"
    fraction = "0"
    if "MS" in places or "US" in places:
        fraction = f"rpad({group('US', 'MS')}, 6, '0')"
    whole = group("SS", default="'0'")
    seconds = f"cast(concat({whole}, '.', {fraction}) as decimal(16,6))"
    if "SS" in places and fraction == "0":
        seconds = f"cast({group('SS')} as decimal(16,6))"
    elif fraction == "0":
        seconds = "cast(0 as decimal(16,6))"
    day = f"cast({group('DD')} as int)"
    minute = f"cast({group('MI', default='0')} as int)"
    year = f"cast({group('YYYY')} as int)"
    moment = f"make_timestamp_ntz({year}, {month}, {day}, {hour}, {minute}, {seconds})"
    error = (
        "cast(raise_error(concat('invalid value for the pattern: \"', "
        f"{value.text}, '\"')) as timestamp_ntz)"
    )
    body = f"if({value.text} is null, null, if(rlike({value.text}, {wanted}), {moment}, {error}))"
    return value, body


def _to_date(call: Call) -> Typed:
    value, body = _read(call)
    return made(f"cast({body} as date)", types.DATE, value)


def _to_timestamp(call: Call) -> Typed:
    call.count(1, 2)
    if len(call.args) == 1:
        seconds = call.arg(0, types.DOUBLE)
        micros = f"cast(rint({seconds.text} * 1000000D) as bigint)"
        return made(f"timestamp_micros({micros})", types.TIMESTAMPTZ, seconds)
    value, body = _read(call)
    return made(f"cast({body} as timestamp)", types.TIMESTAMPTZ, value)


FUNCTIONS: dict[str, Function] = {
    "to_char": _to_char,
    "to_date": _to_date,
    "to_timestamp": _to_timestamp,
}
