"""The options of a sink, by the names that users write.

Unknown options are refused with the nearest known one. A secret may stand in an environment
variable or in a file (`password.env`, `password.file`); it is in no repr and in no error.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import ConfigError

_TRUE, _FALSE = ("true", "t", "yes", "on", "1"), ("false", "f", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a connector."""

    name: str
    doc: str
    default: str | None = None
    """None where the user has to say it; an empty text where leaving it out means something."""
    secret: bool = False
    also: tuple[str, ...] = ()
    """Other names for the same, as other systems spell it."""


class Options(Mapping[str, str]):
    """Checked options by name, with their defaults; secrets are read, and shown nowhere."""

    def __init__(self, values: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
        self._values = dict(values)
        self._secrets = tuple(secret for secret in secrets if secret)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Options({', '.join(self._values)})"

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number between two others."""
        value = self._values[name]
        if not value.lstrip("-").isdigit() or not low <= int(value) <= high:
            raise ConfigError(f'option "{name}" must be a whole number from {low} to {high}')
        return int(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._values[name].lower()
        if value not in (*_TRUE, *_FALSE):
            raise ConfigError(f'option "{name}" must be true or false, not "{value}"')
        return value in _TRUE

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of some words."""
        value = self._values[name].lower()
        if value not in allowed:
            raise ConfigError(
                f'option "{name}" cannot be "{value}"', hint=f"Use one of: {', '.join(allowed)}."
            )
        return value

    def without_secrets(self, text: str) -> str:
        """A text that others wrote, fit to be shown."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def checked_options(connector: str, given: Mapping[str, str], known: Sequence[Option]) -> Options:
    """Check what a user gave against what a connector knows."""
    spelled = {name: option for option in known for name in (option.name, *option.also)}
    for option in known:
        if option.secret:
            spelled |= {f"{option.name}.env": option, f"{option.name}.file": option}
    values = {option.name: option.default for option in known}
    secrets = []
    for name, value in given.items():
        found = spelled.get(name)
        if found is None:
            near = difflib.get_close_matches(name, spelled, n=1)
            raise ConfigError(
                f'connector "{connector}" has no option "{name}"',
                hint=f'Did you mean "{near[0]}"?' if near else f"It has: {', '.join(values)}.",
            )
        values[found.name] = _read(name, found, value)
        if found.secret:
            secrets.append(values[found.name] or "")
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise ConfigError(
            f'connector "{connector}" needs the option "{missing[0]}"',
            hint=next(option.doc for option in known if option.name == missing[0]),
        )
    return Options({name: value or "" for name, value in values.items()}, secrets)


def _read(name: str, option: Option, value: str) -> str:
    if name == f"{option.name}.env":
        if value not in os.environ:
            raise ConfigError(f'option "{name}" names the variable {value}, which is not set')
        return os.environ[value]
    if name == f"{option.name}.file":
        try:
            return Path(value).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f'option "{name}": {error.strerror}: {value}') from error
    return value
