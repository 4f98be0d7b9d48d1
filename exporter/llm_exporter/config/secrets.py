"""Secrets at the time of use: header values out of configured credentials, with files read again so that they may rotate.

The HTTP sources, discovery and the report call `credentials_headers` before each request. A file that cannot be read is a
`SourceError` that names the file and never its content.
"""

from __future__ import annotations

import base64
from pathlib import Path

from llm_exporter.config.http_client import HttpClient
from llm_exporter.errors import SourceError

REASON = "credentials"  # of the SourceErrors raised here
_MAX_BYTES = 64 * 1024


def credentials_headers(client: HttpClient) -> dict[str, str]:
    """The headers that carry a client's credentials, and its further configured headers.

    Call it for each request: files are read again. Send the result to the configured scheme, host and port only.

    Raises:
        SourceError: a file cannot be read or holds what a header cannot carry.
    """
    headers: dict[str, str] = {}
    for name, header in client.headers.items():
        values = [secret.reveal() for secret in (*header.values, *header.secrets)] + [read_secret(path) for path in header.files]
        headers[name] = _latin(", ".join(values), f"the header {name}")
    if (authorization := client.authorization) is not None:
        if authorization.credentials is not None:
            credentials = authorization.credentials.reveal()
        else:
            assert authorization.credentials_file is not None
            credentials = read_secret(authorization.credentials_file)
        headers["Authorization"] = _latin(f"{authorization.type} {credentials}", "authorization")
    elif (basic := client.basic_auth) is not None:
        user = basic.username if basic.username is not None else read_secret(basic.username_file)
        password = basic.password.reveal() if basic.password is not None else ""
        if basic.password_file is not None:
            password = read_secret(basic.password_file)
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return headers


def read_secret(path: Path | None) -> str:
    """The text of a secret's file, without white space around it.

    Raises:
        SourceError: the file cannot be read, is too large, is empty, or holds what no header can carry.
    """
    assert path is not None
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(REASON, f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions") from None
    if len(content) > _MAX_BYTES:
        raise SourceError(REASON, f"{path} is larger than {_MAX_BYTES} bytes", hint="check the path: a secret is short")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise SourceError(REASON, f"{path} is not UTF-8", hint="check the path: a secret is text") from None
    if not text:
        raise SourceError(REASON, f"{path} is empty", hint="write the secret into it")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise SourceError(REASON, f"{path} holds more than one line, or a control character", hint="write one line")
    return text


def _latin(text: str, what: str) -> str:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        raise SourceError(REASON, f"{what} holds letters that HTTP headers cannot carry", hint="use ASCII") from None
    return text
