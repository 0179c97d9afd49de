"""ALTER, DROP and COMMENT."""

from headwater.errors import NotSupported, ParseError
from headwater.sql.create_statements import options_in_parentheses, read_column
from headwater.sql.statement import (
    AddColumn,
    AlterOptions,
    AlterSetting,
    Comment,
    Drop,
    DropColumn,
    ObjectKind,
    ObjectName,
    RefreshSchema,
    Rename,
    RenameColumn,
    RewindSink,
    SetOwner,
    SetSchema,
    Statement,
    SwapWith,
    Written,
)
from headwater.sql.token_reader import TokenReader

_KINDS = tuple((tuple(kind.value.upper().split()), kind) for kind in ObjectKind)


def read_kind(reader: TokenReader) -> ObjectKind:
    """The kind of object that comes next."""
    for words, kind in _KINDS:
        if reader.take(*words):
            return kind
    raise reader.error(ParseError, hint="Expected TABLE, MATERIALIZED VIEW, VIEW, ...")


def read_drop(reader: TokenReader, written: Written) -> Statement:
    """DROP kind [IF EXISTS] name, ... [CASCADE | RESTRICT]."""
    reader.expect("DROP")
    kind = read_kind(reader)
    if_exists = reader.take("IF", "EXISTS")
    names = [reader.object_name()]
    while reader.take(","):
        names.append(reader.object_name())
    cascade = reader.take("CASCADE")
    if not cascade:
        reader.take("RESTRICT")
    return Drop(
        text=written.text,
        place=written.place,
        kind=kind,
        names=tuple(names),
        if_exists=if_exists,
        cascade=cascade,
    )


def read_alter(reader: TokenReader, written: Written) -> Statement:  # noqa: PLR0911, PLR0912
    """ALTER of one object, by one action."""
    reader.expect("ALTER")
    kind = read_kind(reader)
    common = {"text": written.text, "place": written.place}
    if kind is ObjectKind.SYSTEM:
        reader.expect("SET")
        setting, value = _setting(reader)
        return AlterSetting(**common, kind=kind, name=None, setting=setting, value=value)  # type: ignore[arg-type]
    if reader.take("IF", "EXISTS"):
        raise reader.error(NotSupported, "ALTER ... IF EXISTS is not supported")
    name = reader.object_name()
    if reader.take("RENAME"):
        return _rename(reader, written, kind, name)
    if reader.take("ADD"):
        return _add_column(reader, written, name)
    if reader.take("DROP"):
        return _drop_column(reader, written, name)
    if kind is ObjectKind.TABLE and reader.take("REFRESH", "SCHEMA"):
        return RefreshSchema(text=written.text, place=written.place, name=name)
    if reader.take("OWNER", "TO"):
        return SetOwner(**common, kind=kind, name=name, owner=reader.name())  # type: ignore[arg-type]
    if reader.take("SET", "SCHEMA"):
        return SetSchema(**common, kind=kind, name=name, schema=reader.name())  # type: ignore[arg-type]
    if reader.take("CONNECTOR", "WITH"):
        options = options_in_parentheses(reader)
        return AlterOptions(**common, kind=kind, name=name, options=options)  # type: ignore[arg-type]
    if kind is ObjectKind.SINK and reader.take("REWIND", "TO"):
        return _rewind(reader, written, name)
    if reader.take("SET"):
        if kind in (ObjectKind.SOURCE, ObjectKind.SINK) and reader.before("("):
            options = options_in_parentheses(reader)
            return AlterOptions(**common, kind=kind, name=name, options=options)  # type: ignore[arg-type]
        if reader.before("CONFIG"):
            raise reader.error(NotSupported, "SET CONFIG is not supported")
        setting, value = _setting(reader)
        return AlterSetting(
            text=written.text,
            place=written.place,
            kind=kind,
            name=name,
            setting=setting,
            value=value,
            deferred=reader.take("DEFERRED"),
        )
    if reader.before("ALTER"):
        raise reader.error(
            NotSupported, "ALTER COLUMN is not supported", hint="Add a new column instead."
        )
    if reader.take("SWAP", "WITH"):
        if kind is not ObjectKind.MATERIALIZED_VIEW:
            raise reader.error(
                NotSupported, f"ALTER {kind.value.upper()} ... SWAP WITH is not supported"
            )
        other = reader.object_name()
        return SwapWith(text=written.text, place=written.place, name=name, other=other)
    raise reader.error(ParseError)


def _rewind(reader: TokenReader, written: Written, name: ObjectName) -> Statement:
    if reader.take("TIMESTAMP"):
        when = reader.string()
        return RewindSink(text=written.text, place=written.place, name=name, timestamp=when)
    reader.expect("EPOCH")
    offset, value = reader.offset, reader.value()
    if not value.isdigit():
        raise reader.error_at(ParseError, f'an epoch is a number, not "{value}"', offset)
    return RewindSink(text=written.text, place=written.place, name=name, epoch=int(value))


def _setting(reader: TokenReader) -> tuple[str, str | None]:
    setting = reader.name("a setting")
    if not reader.take("="):
        reader.expect("TO")
    if reader.take("DEFAULT"):
        return setting, None
    return setting, reader.value()


def _rename(reader: TokenReader, written: Written, kind: ObjectKind, name: ObjectName) -> Statement:
    if reader.take("TO"):
        return Rename(
            text=written.text, place=written.place, kind=kind, name=name, new_name=reader.name()
        )
    reader.take("COLUMN")
    column = reader.name("a column")
    reader.expect("TO")
    return RenameColumn(
        text=written.text,
        place=written.place,
        kind=kind,
        name=name,
        column=column,
        new_name=reader.name(),
    )


def _add_column(reader: TokenReader, written: Written, name: ObjectName) -> Statement:
    for words in (("CONSTRAINT",), ("PRIMARY", "KEY"), ("UNIQUE",), ("FOREIGN", "KEY")):
        if reader.before(*words):
            raise reader.error(NotSupported, "adding a constraint is not supported")
    reader.take("COLUMN")
    if_not_exists = reader.take("IF", "NOT", "EXISTS")
    offset = reader.offset
    column, is_key = read_column(reader)
    if is_key:
        raise reader.error_at(NotSupported, "a key cannot be added to a table", offset)
    return AddColumn(
        text=written.text,
        place=written.place,
        name=name,
        column=column,
        if_not_exists=if_not_exists,
    )


def _drop_column(reader: TokenReader, written: Written, name: ObjectName) -> Statement:
    if reader.before("CONSTRAINT"):
        raise reader.error(NotSupported, "dropping a constraint is not supported")
    reader.take("COLUMN")
    if_exists = reader.take("IF", "EXISTS")
    column = reader.name("a column")
    cascade = reader.take("CASCADE")
    if not cascade:
        reader.take("RESTRICT")
    return DropColumn(
        text=written.text,
        place=written.place,
        name=name,
        column=column,
        if_exists=if_exists,
        cascade=cascade,
    )


def read_comment(reader: TokenReader, written: Written) -> Statement:
    """COMMENT ON kind name IS 'text' | NULL."""
    reader.expect("COMMENT", "ON")
    column = None
    if reader.take("COLUMN"):
        parts = [reader.name()]
        while reader.take("."):
            parts.append(reader.name())
        if not 2 <= len(parts) <= 3:
            raise reader.error(ParseError, hint="Expected table.column.")
        column = parts[-1]
        name = ObjectName(parts[-2], parts[0] if len(parts) == 3 else None)
        kind = ObjectKind.TABLE
    else:
        kind = read_kind(reader)
        name = reader.object_name()
    reader.expect("IS")
    comment = None if reader.take("NULL") else reader.string()
    return Comment(
        text=written.text,
        place=written.place,
        kind=kind,
        name=name,
        column=column,
        comment=comment,
    )
