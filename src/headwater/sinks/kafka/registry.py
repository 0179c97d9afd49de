"""A schema registry's client: register a schema under a subject, and get its number.

It speaks the Confluent protocol, which other registries speak as well. A message that a number
was put before, in five bytes, can be read by anybody who asks the registry for that number.
"""

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import ConfigError, SinkUnavailable, UserError

_TIMEOUT_S = 15
_TYPE = "application/vnd.schemaregistry.v1+json"
_MAGIC = b"\x00"
_LOGIN, _INCOMPATIBLE, _INVALID = (401, 403), 409, 422


def wire_header(schema_id: int) -> bytes:
    """What stands before the Avro bytes of a message."""
    return _MAGIC + schema_id.to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistry:
    """Where schemas are filed; several addresses are asked in turn until one answers."""

    addresses: tuple[str, ...]
    username: str = ""
    password: str = field(default="", repr=False)
    ca_location: str = ""

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ConfigError(
                'ENCODE AVRO needs the option "schema.registry"',
                hint="FORMAT UPSERT ENCODE AVRO (schema.registry = 'http://host:8081')",
            )
        for address in self.addresses:
            if not address.startswith(("http://", "https://")):
                raise ConfigError(
                    f'option "schema.registry": "{address}" does not begin with http:// or https://'
                )

    def register(self, subject: str, schema: Any) -> int:
        """The number of a schema under a subject. Replay: the same number."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        body = json.dumps({"schema": json.dumps(schema, separators=(",", ":"))}).encode()
        down: Exception | None = None
        for address in self.addresses:
            try:
                return int(self._post(address.rstrip("/") + path, body)["id"])
            except urllib.error.HTTPError as error:
                with error:
                    if error.code < 500:
                        raise self._refused(subject, error) from error
                down = error
            except (OSError, ValueError, KeyError) as error:
                if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                    raise ConfigError(
                        f"the schema registry's certificate is not trusted: {address}",
                        hint="See schema.registry.ca.location.",
                    ) from error
                down = error
        raise SinkUnavailable(
            f"the schema registry does not answer: {', '.join(self.addresses)}", detail=str(down)
        ) from down

    def _post(self, address: str, body: bytes) -> Any:
        request = urllib.request.Request(address, body, {"Content-Type": _TYPE, "Accept": _TYPE})
        if self.username:
            login = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        context = None
        if address.startswith("https://"):
            context = ssl.create_default_context(cafile=self.ca_location or None)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
            return json.load(answer)

    def _refused(self, subject: str, error: urllib.error.HTTPError) -> UserError:
        try:
            detail = str(json.load(error).get("message", ""))
        except (ValueError, AttributeError):
            detail = error.reason
        if error.code in _LOGIN:
            return ConfigError(
                "the schema registry does not let us in",
                detail=detail,
                hint="See schema.registry.username and schema.registry.password.",
            )
        if error.code == _INCOMPATIBLE:
            return UserError(
                f'the schema registry refuses the new schema of "{subject}"',
                detail=detail,
                hint="Change the subject's compatibility, or use another topic.",
            )
        what = "schema" if error.code == _INVALID else "request"
        return UserError(
            f'the schema registry refuses the {what} for "{subject}" ({error.code})', detail=detail
        )
