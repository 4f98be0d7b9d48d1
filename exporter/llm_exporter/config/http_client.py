"""How requests to a target, a discovery endpoint or Prometheus are authorised and secured; keys as in Prometheus.

`secrets.py` turns these settings into header values at the time of use, so files may rotate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from llm_exporter.config.urls import is_server_name
from llm_exporter.config.values import ExpandedText, FilePath, Flag, Pem, Placeholder, Secret, Section, Text, fault

TlsVersion = Literal["TLS10", "TLS11", "TLS12", "TLS13"]


class Authorization(Section):
    """The header `Authorization: TYPE CREDENTIALS`."""

    type: Text = Field(default="Bearer", description="Word before the credentials.")
    credentials: Secret | None = Field(default=None, description="The token itself; `${NAME}` is expanded.")
    credentials_file: FilePath | None = Field(default=None, description="File that holds the token; read again at each request.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.type.lower() == "basic":
            raise fault("Basic needs a user and a password", "type", remedy="use basic_auth")
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", self.type):
            raise fault("is not a scheme of HTTP", "type", remedy="write one word, for example Bearer")
        if (self.credentials is None) == (self.credentials_file is None):
            raise fault("needs either credentials or credentials_file", remedy="give exactly one of the two")
        if self.credentials is not None and not self.credentials.reveal():
            raise fault("is empty", "credentials", remedy="give the token")
        return self


class BasicAuth(Section):
    """User and password in the header `Authorization`."""

    username: ExpandedText | None = Field(default=None, description="User; `${NAME}` is expanded.")
    username_file: FilePath | None = Field(default=None, description="File that holds the user; read again at each request.")
    password: Secret | None = Field(default=None, description="Password; `${NAME}` is expanded.")
    password_file: FilePath | None = Field(default=None, description="File that holds the password; read again at each request.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.username is None) == (self.username_file is None):
            raise fault("needs either username or username_file", remedy="give exactly one of the two")
        if self.username is not None and ":" in self.username:
            raise fault("holds a colon, which ends the user in HTTP", "username", remedy="use a user without a colon")
        if self.password is not None and self.password_file is not None:
            raise fault("has both password and password_file", remedy="give only one of the two")
        return self


class TlsConfig(Section):
    """TLS to the server."""

    ca: Pem | None = Field(default=None, description="Certificates (PEM) of the authorities that are trusted instead of the system's.")
    ca_file: FilePath | None = Field(default=None, description="File of such certificates; read again when it changes.")
    cert_file: FilePath | None = Field(default=None, description="Client certificate (PEM); read again when it changes.")
    key_file: FilePath | None = Field(default=None, description="Key of the client certificate (PEM, without passphrase).")
    server_name: Text | None = Field(default=None, description="Name that the server's certificate must carry, where the URL has another.")
    insecure_skip_verify: Flag = Field(default=False, description="Accept any certificate.")
    min_version: TlsVersion | None = Field(default=None, description="Lowest TLS version that is accepted; Python's default otherwise.")
    max_version: TlsVersion | None = Field(default=None, description="Highest TLS version that is used.")

    @model_validator(mode="after")
    def _name(self) -> Self:
        if self.server_name and not is_server_name(self.server_name):
            raise fault("is no host name or address", "server_name", remedy="write the name as it stands in the server's certificate")
        return self

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.ca is not None and self.ca_file is not None:
            raise fault("has both ca and ca_file", remedy="give only one of the two")
        if (self.cert_file is None) != (self.key_file is None):
            raise fault("has one of cert_file and key_file without the other", remedy="give both")
        if self.min_version and self.max_version and self.min_version > self.max_version:
            raise fault("is higher than max_version", "min_version", remedy="swap the two")
        return self


class Header(Section):
    """Values of one header: all of the three lists are sent, joined by a comma."""

    values: tuple[Secret, ...] = Field(default=(), description="Values; `${NAME}` is expanded; shown nowhere.")
    secrets: tuple[Secret, ...] = Field(default=(), description="The same; the name is Prometheus'.")
    files: tuple[FilePath, ...] = Field(default=(), description="Files that hold a value; read again at each request.")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.values and not self.secrets and not self.files:
            raise fault("has no value", remedy="write NAME: value")
        return self


# Headers that the client itself sets, or that have a key of their own (Prometheus' list, shortened to what applies).
RESERVED_HEADERS = frozenset(
    (
        "accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "x-prometheus-scrape-timeout-seconds",
    )
)  # fmt: skip


def _header_name(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise fault("is not a header name", remedy="use letters, digits and -")
    if text.lower() in RESERVED_HEADERS:
        raise fault(
            f"the header {text!r} is set by the exporter itself",
            remedy="use authorization or basic_auth" if text.lower() == "authorization" else "remove it",
        )
    return text


def _header(value: object) -> object:
    if isinstance(value, str | Secret):
        return {"values": [value]}
    if isinstance(value, Mapping | Header):
        return value
    raise fault("must be text", remedy="put it in quotes, or write {values: […]}")


HeaderName = Annotated[Text, AfterValidator(_header_name), Placeholder("<headername>")]
HeaderValue = Annotated[Header, BeforeValidator(_header), Placeholder("<secret> | <header>")]


class HttpClient(Section):
    """Keys that everything with a URL shares."""

    authorization: Authorization | None = Field(default=None, description="Token in the header `Authorization`.")
    basic_auth: BasicAuth | None = Field(default=None, description="User and password; not beside `authorization`.")
    tls_config: TlsConfig | None = Field(default=None, description="Certificates, names and versions of TLS.")
    headers: Mapping[HeaderName, HeaderValue] = Field(
        default={}, description="More headers: `NAME: value`, or as in Prometheus `NAME: {values: […], secrets: […], files: […]}`."
    )

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        if self.authorization is not None and self.basic_auth is not None:
            raise fault("stands beside authorization", "basic_auth", remedy="keep one of the two")
        names: dict[str, Any] = {}
        for name in self.headers:
            if names.setdefault(name.lower(), name) != name:
                raise fault(f"repeats the header {names[name.lower()]!r}", "headers", name, remedy="keep one of the two")
        return self
