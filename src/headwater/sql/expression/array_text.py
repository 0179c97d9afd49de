"""Arrays as PostgreSQL writes them: `{1,2,NULL,"a b"}`."""


def read_array(text: str) -> list[str | None]:
    """The elements of a flat array literal; a ValueError for anything else."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise ValueError(text)
    found: list[str | None] = []
    at, end = 1, len(body) - 1
    while at < end or found:
        at, item = _element(body, at, end)
        found.append(item)
        if at >= end:
            break
        if body[at] != ",":
            raise ValueError(text)
        at += 1
    return found


def _element(body: str, at: int, end: int) -> tuple[int, str | None]:
    while at < end and body[at].isspace():
        at += 1
    if at < end and body[at] == '"':
        return _quoted(body, at + 1, end)
    item = ""
    while at < end and body[at] != ",":
        if body[at] in '{}"':
            raise ValueError(body)
        if body[at] == "\\":
            at += 1
        item += body[at]
        at += 1
    item = item.strip()
    if not item:
        raise ValueError(body)
    return at, None if item.upper() == "NULL" else item


def _quoted(body: str, at: int, end: int) -> tuple[int, str]:
    item = ""
    while at < end and body[at] != '"':
        if body[at] == "\\":
            at += 1
        item += body[at]
        at += 1
    if at >= end:
        raise ValueError(body)
    at += 1
    while at < end and body[at].isspace():
        at += 1
    return at, item
