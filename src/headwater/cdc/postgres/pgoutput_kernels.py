"""Compiled loops over pgoutput's messages: transactions, and the cells of changed rows.

The meaning is in `pgoutput.py`; a property test holds both equal.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: PLR0913, PLR0917
# Kernels have no objects to hold their buffers, and numba infers the types by itself.

import numba
import numpy as np

from headwater.cdc.postgres.kernels import int16_at, int32_at, int64_at

INSERT, DELETE, PREIMAGE, POSTIMAGE = 0, 1, 2, 3
FAULT_KIND, FAULT_WIDTH, FAULT_FORMAT, FAULT_UNCHANGED, FAULT_SHORT = 1, 2, 3, 4, 5
_MOST_BITS = 63


@numba.njit(cache=True, nogil=True)
def scan_messages(data, starts, kinds, relations, owners, transactions):
    """What each message is, and which transaction it belongs to.

    A row of `transactions` is: first message, message after the last, commit's LSN, end, time
    in microseconds since 2000, transaction id. Answers how many are complete.
    """
    count = 0
    for message in range(starts.size):
        at = starts[message]
        kind = data[at]
        kinds[message] = kind
        owners[message] = count
        if kind == 66:  # B
            transactions[count, 0] = message
            transactions[count, 2] = int64_at(data, at + 1)
            transactions[count, 5] = int32_at(data, at + 17) & 0xFFFFFFFF
        elif kind == 67:  # C
            transactions[count, 1] = message + 1
            transactions[count, 3] = int64_at(data, at + 10)
            transactions[count, 4] = int64_at(data, at + 18)
            count += 1
        elif kind in (73, 85, 68):  # I, U, D
            relations[message] = int32_at(data, at + 1) & 0xFFFFFFFF
    return count


@numba.njit(cache=True, nogil=True)
def _row_cells(data, at, end, format_, starts, lengths, out):
    """The cells of one row; -1 is null, -2 unchanged. Answers where it ends, or minus a fault."""
    columns = starts.shape[0]
    if at + 2 > end:
        return -FAULT_SHORT
    if int16_at(data, at) != columns:
        return -FAULT_WIDTH
    at += 2
    for column in range(columns):
        if at >= end:
            return -FAULT_SHORT
        kind = data[at]
        at += 1
        if kind == 110:  # n
            lengths[column, out] = -1
            starts[column, out] = 0
            continue
        if kind == 117:  # u
            lengths[column, out] = -2
            starts[column, out] = 0
            continue
        if kind != format_:
            return -FAULT_FORMAT if kind in (116, 98) else -FAULT_KIND
        length = int32_at(data, at)
        starts[column, out] = at + 4
        lengths[column, out] = length
        at += 4 + length
        if length < 0 or at > end:
            return -FAULT_SHORT
    return at


@numba.njit(cache=True, nogil=True)
def _same_cell(data, starts, lengths, column, one, other):
    length = lengths[column, one]
    if length != lengths[column, other]:
        return False
    first, second = starts[column, one], starts[column, other]
    for place in range(length):
        if data[first + place] != data[second + place]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _take_unchanged(lengths, row):
    """Turn the marks of unchanged cells into bits and nulls; -1 if there are too many."""
    bits = np.int64(0)
    for column in range(lengths.shape[0]):
        if lengths[column, row] == -2:
            lengths[column, row] = -1
            if column >= _MOST_BITS:
                return np.int64(-1)
            bits |= np.int64(1) << np.int64(column)
    return bits


@numba.njit(cache=True, nogil=True)
def split_changes(
    data, message_starts, message_lengths, chosen, format_, is_key, starts, lengths, types,
    origins, unchanged,
):  # fmt: skip
    """The rows of the chosen messages, which are inserts, updates and deletes of one table.

    Answers the rows, or minus a fault and the message.
    """
    columns = starts.shape[0]
    row = 0
    for message in chosen:
        at = message_starts[message]
        end = at + message_lengths[message]
        kind = data[at]
        at += 5
        if kind in (73, 68):  # I, D
            at = _row_cells(data, at + 1, end, format_, starts, lengths, row)
            if at < 0:
                return at, message
            types[row] = INSERT if kind == 73 else DELETE
            origins[row] = message
            unchanged[row] = _take_unchanged(lengths, row)
            if unchanged[row] < 0:
                return -FAULT_UNCHANGED, message
            row += 1
            continue
        old, new = row, row + 1
        has_old = data[at] != 78  # N
        if has_old:
            at = _row_cells(data, at + 1, end, format_, starts, lengths, old)
            if at < 0:
                return at, message
        at = _row_cells(data, at + 1, end, format_, starts, lengths, new)
        if at < 0:
            return at, message
        moved = False
        for column in range(columns):
            if not has_old:
                keep = is_key[column] and lengths[column, new] >= 0
                starts[column, old] = starts[column, new] if keep else 0
                lengths[column, old] = lengths[column, new] if keep else -1
                continue
            if lengths[column, new] == -2 and lengths[column, old] >= 0:
                starts[column, new] = starts[column, old]
                lengths[column, new] = lengths[column, old]
            if is_key[column] and not _same_cell(data, starts, lengths, column, old, new):
                moved = True
        _take_unchanged(lengths, old)
        types[old] = DELETE if moved else PREIMAGE
        types[new] = INSERT if moved else POSTIMAGE
        origins[old] = origins[new] = message
        unchanged[old] = 0
        unchanged[new] = _take_unchanged(lengths, new)
        if unchanged[new] < 0:
            return -FAULT_UNCHANGED, message
        row += 2
    return row, -1
