"""The events of Nexmark: people join, auctions open, bids are made.

Event n is the same in every run with the same seed, whoever asks for it and in whatever pieces. Of
each 50 events one is a person, three are auctions and 46 are bids. A few things are hot, as they
are in life:

    a bid        goes to the hot auction in 1 of 2 cases, else to one of the last 100 or next 10
                 comes from the hot bidder in 3 of 4 cases, else from one of the last 1,000 people
                 or next 10
                 comes by one of four channels in 1 of 2 cases, else by one of 10,000
    an auction   is opened by the hot seller in 3 of 4 cases
    a price      is from 1 to 1,000,000 and evenly spread over its number of digits

What is hot changes with every hundredth auction or person. A bid may so be there before its auction
or its bidder, which a join has to live with. Time goes on by the same step from event to event, so
no two events are at the same time.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

Row = tuple[Any, ...]

SCHEMA = """
create table person (id bigint primary key, name varchar, email_address varchar,
  credit_card varchar, city varchar, state varchar, date_time timestamp, extra varchar);
create table auction (id bigint primary key, item_name varchar, description varchar,
  initial_bid bigint, reserve bigint, date_time timestamp, expires timestamp, seller bigint,
  category bigint, extra varchar);
create table bid (auction bigint, bidder bigint, price bigint, channel varchar, url varchar,
  date_time timestamp, extra varchar);
create table side_input (key bigint primary key, value varchar);
"""

_BLOCK = 50
_AUCTIONS = 3
_FIRST_ID = 1000
_HOT = 100
_AHEAD = 10
_IN_FLIGHT = 100
_ACTIVE = 1000
_CATEGORIES = range(10, 15)
_START = datetime(2015, 7, 15)  # noqa: DTZ001  a timestamp without time zone

_FIRST_NAMES = ("Ada", "Blaise", "Carl", "Dorothy", "Emmy", "Grace", "Kurt", "Mary", "Niels")
_LAST_NAMES = ("Bohr", "Gauss", "Hopper", "Lovelace", "Noether", "Pascal", "Shelley", "Vaughan")
_PLACES = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"),
    ("Portland", "OR"), ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"),
    ("Cheyenne", "WY"),
)  # fmt: skip
_CHANNELS = ("Apple", "Baidu", "Facebook", "Google")
_LETTERS = "abcdefghijklmnopqrstuvwxyz "


@dataclass(frozen=True, slots=True)
class Nexmark:
    """All events of one seed."""

    seed: int = 0
    step: timedelta = timedelta(milliseconds=20)

    def events(self, first: int, count: int) -> dict[str, list[Row]]:
        """The rows of events `first` to `first + count - 1`, by table."""
        found: dict[str, list[Row]] = {"person": [], "auction": [], "bid": []}
        for number in range(first, first + count):
            place = number % _BLOCK
            dice = random.Random(f"{self.seed} {number}")
            if place == 0:
                found["person"].append(self._person(dice, number))
            elif place <= _AUCTIONS:
                found["auction"].append(self._auction(dice, number))
            else:
                found["bid"].append(self._bid(dice, number))
        return found

    def inserts(self, first: int, count: int) -> list[str]:
        """The same events as SQL."""
        events = self.events(first, count)
        return [insert(table, rows) for table, rows in events.items() if rows]

    def _at(self, number: int) -> datetime:
        return _START + number * self.step

    def _person(self, dice: random.Random, number: int) -> Row:
        first, last = dice.choice(_FIRST_NAMES), dice.choice(_LAST_NAMES)
        city, state = dice.choice(_PLACES)
        card = " ".join(f"{dice.randrange(10_000):04}" for _ in range(4))
        email = f"{first.lower()}@{_text(dice, 6).replace(' ', '')}.example"
        return (
            _person_id(number), f"{first} {last}", email, card, city, state, self._at(number),
            _text(dice, 40),
        )  # fmt: skip

    def _auction(self, dice: random.Random, number: int) -> Row:
        initial = _price(dice)
        # As long as it takes to open up to twice as many auctions as are open at a time.
        open_for = dice.randint(1, 2 * _IN_FLIGHT * _BLOCK // _AUCTIONS) * self.step
        return (
            _auction_id(number), _text(dice, 20), _text(dice, 60), initial, initial + _price(dice),
            self._at(number), self._at(number) + open_for,
            _someone(dice, number, hot=0), dice.choice(_CATEGORIES), _text(dice, 40),
        )  # fmt: skip

    def _bid(self, dice: random.Random, number: int) -> Row:
        last = _auction_id(number)
        if dice.randrange(2):
            auction = last // _HOT * _HOT
        else:
            auction = dice.randint(max(_FIRST_ID, last - _IN_FLIGHT), last + _AHEAD)
        channel, url = _channel(dice)
        return (
            auction, _someone(dice, number, hot=1), _price(dice), channel, url, self._at(number),
            _text(dice, 40),
        )  # fmt: skip


def insert(table: str, rows: Iterable[Row]) -> str:
    """Rows as an INSERT."""
    shown = ",\n  ".join(f"({', '.join(_literal(value) for value in row)})" for row in rows)
    return f"insert into {table} values\n  {shown}"


def _person_id(number: int) -> int:
    """The last person who has joined when an event happens."""
    return _FIRST_ID + number // _BLOCK


def _auction_id(number: int) -> int:
    """The last auction that is open when an event happens."""
    block, place = divmod(number, _BLOCK)
    return _FIRST_ID + block * _AUCTIONS + min(max(place, 1), _AUCTIONS) - 1


def _someone(dice: random.Random, number: int, *, hot: int) -> int:
    last = _person_id(number)
    if dice.randrange(4):
        return last // _HOT * _HOT + hot
    return dice.randint(max(_FIRST_ID, last - _ACTIVE), last + _AHEAD)


def _price(dice: random.Random) -> int:
    """In cents."""
    return round(10 ** (dice.random() * 6) * 100)


def _channel(dice: random.Random) -> tuple[str, str]:
    path = "/".join(_text(dice, size).replace(" ", "_") for size in (3, 5, 2))
    url = f"https://auctions.example/{path}/item.htm?query=1"
    if dice.randrange(2):
        return dice.choice(_CHANNELS), url
    number = dice.randrange(10_000)
    # A tenth of the addresses do not say by which channel.
    return f"channel-{number}", f"{url}&channel_id={number}" if dice.randrange(10) else url


def _text(dice: random.Random, longest: int) -> str:
    size = dice.randint(max(2, longest // 2), longest)
    return "".join(dice.choices(_LETTERS, k=size)).strip() or "a"


def _literal(value: Any) -> str:
    match value:
        case int():
            return str(value)
        case datetime():
            return f"timestamp '{value.isoformat(sep=' ')}'"
        case _:
            return f"'{value}'"
