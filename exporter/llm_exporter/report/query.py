"""Questions to Prometheus, or anything that speaks its HTTP API (VictoriaMetrics, Thanos, Mimir).

In: an expression and a time range. Out: `Series` at even steps. Called by `history.py`. Long ranges are asked in pieces that stay within
the server's limits (11 000 points a series, its sample limit, its timeout); a server that says "too much" is asked for half. Every way to
fail has a reason and a remedy, and no message holds a credential.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import requests

from llm_exporter.config.http_client import TlsConfig
from llm_exporter.config.tls import TlsAdapter, tls_context
from llm_exporter.errors import FetchError, UsageError
from llm_exporter.report.wire import NotAMatrix, Series, parse_matrix

MAX_POINTS = 10_000  # the server refuses more than 11 000 a series
MAX_ANSWER_POINTS = 600_000  # about 17 MB of JSON: bounds our memory and the server's time per answer
SMALLEST_SPAN_SECONDS = 6 * 3600
ATTEMPTS = 4
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Connection:
    """How to reach the server.

    Attributes:
        url: base URL; a path prefix (`/prometheus`, `/select/0/prometheus`) is kept.
        matchers: label matchers without braces, added to every selector.
        headers: request headers, credentials included (`X-Scope-OrgID` for Mimir).
        tls: certificates, names and versions; None for the system's.
        request_timeout: seconds for one answer.
        deadline: seconds for all answers together.
    """

    url: str
    matchers: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: TlsConfig | None = None
    request_timeout: float = 60.0
    deadline: float = 900.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"Prometheus URL {self.url.rpartition('@')[2]!r}: give http:// or https:// and a host")
        if parts.username is not None or parts.password is not None:
            raise UsageError("Prometheus URL holds a user or password: put them under report.prometheus.authorization or basic_auth")


class _TooMuch(Exception):
    """The server refused a range that is too long for it."""


class Prometheus:
    """One server, asked by several threads.

    Args:
        connection: where and how.
        clock: monotonic seconds.
        sleep: waits between attempts.
    """

    def __init__(
        self, connection: Connection, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.connection = connection
        self._clock = clock
        self._sleep = sleep
        self._give_up_at = clock() + connection.deadline
        self._session = requests.Session()
        self._session.headers.update(connection.headers)
        self._session.headers.setdefault("User-Agent", "llm-exporter-report")
        if urlsplit(connection.url).hostname in LOOPBACK:
            self._session.headers["Accept-Encoding"] = "identity"  # on one machine, compression only costs
        self._session.trust_env = False  # no ~/.netrc that would replace the configured credentials
        name = connection.tls.server_name if connection.tls else None
        self._session.mount("https://", TlsAdapter(tls_context(connection.tls), name))
        self._lock = threading.Lock()
        self.answers = 0
        self.points = 0

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def range(self, expression: str, start: int, end: int, step: int, *, sink: Callable[[list[Series]], None]) -> None:
        """Ask for an expression from start to end, both included, and hand over each piece as it comes.

        Args:
            expression: PromQL.
            start: unix seconds.
            end: unix seconds.
            step: seconds.
            sink: takes the series of one piece; pieces come in order of time.

        Raises:
            FetchError: no usable answer; the reason says why.
        """
        at = start
        # The first piece is short: it tells how many series there are, and with that how long the others may be.
        span = min(end - start, 24 * 3600 if step < 3600 else 7 * 24 * 3600)
        while at <= end:
            stop = min(end, at + span // step * step)
            try:
                series = self._ask(expression, at, stop, step)
            except _TooMuch as error:
                if span <= SMALLEST_SPAN_SECONDS:
                    raise FetchError("too_much", f"{error} (even for {span // 3600} h)", hint=_HINTS["too_much"]) from None
                span //= 2
                continue
            sink(series)
            at = stop + step
            limit = min(MAX_POINTS, MAX_ANSWER_POINTS // max(1, len(series)))
            span = max(SMALLEST_SPAN_SECONDS, min((limit - 1) * step, span * 8))

    def _ask(self, expression: str, start: int, end: int, step: int) -> list[Series]:
        # nocache: VictoriaMetrics would move start and end to multiples of the step; the others ignore it.
        query = {"query": expression, "start": str(start), "end": str(end), "step": str(step), "nocache": "1"}
        error: FetchError | None = None
        for attempt in range(ATTEMPTS):
            left = self._give_up_at - self._clock()
            if left <= 0:
                raise FetchError(
                    "timeout", f"{self._where} did not answer all questions within {self.connection.deadline:.0f} s", hint=_HINTS["timeout"]
                )
            if attempt:
                self._sleep(min(left, 0.5 * 2**attempt))
            try:
                return self._once(query, min(left, self.connection.request_timeout))
            except FetchError as failure:
                if failure.reason not in _WORTH_ANOTHER:
                    raise
                error = failure
        assert error is not None
        if error.reason == "timeout" and end - start > SMALLEST_SPAN_SECONDS:
            raise _TooMuch(str(error))
        raise error

    def _once(self, query: Mapping[str, str], timeout: float) -> list[Series]:
        address = self.connection.url.rstrip("/") + "/api/v1/query_range"
        try:
            answer = self._session.get(
                address, params={**query, "timeout": f"{timeout:.0f}s"}, timeout=(min(10.0, timeout), timeout), allow_redirects=False
            )
        except requests.exceptions.SSLError as failure:
            raise self._error("tls", f"no trusted connection to {self._where}") from failure
        except requests.exceptions.Timeout as failure:
            raise self._error("timeout", f"no answer from {self._where} within {timeout:.0f} s") from failure
        except requests.exceptions.ConnectionError as failure:
            text = str(failure)
            unresolved = "resolve" in text or "getaddrinfo" in text
            reason = "dns" if unresolved else "refused" if "refused" in text else "connection_closed"
            raise self._error(reason, f"cannot reach {self._where}") from failure
        except requests.exceptions.RequestException as failure:
            raise self._error("connection_closed", f"the answer of {self._where} broke off: {type(failure).__name__}") from failure
        if answer.status_code != requests.codes.ok:
            self._refuse(answer)
        try:
            series = parse_matrix(answer.content)
        except NotAMatrix as failure:
            page = answer.content.lstrip()[:1] == b"<"
            what = "a web page" if page else "something that is no Prometheus answer"
            raise self._error("not_prometheus", f"{self._where} answered with {what}") from failure
        with self._lock:
            self.answers += 1
            self.points += sum(one.values.size for one in series)
        return series

    def _refuse(self, answer: requests.Response) -> None:
        code = answer.status_code
        try:
            told = str(answer.json().get("error", ""))[:300]
        except (ValueError, AttributeError):
            told = ""
        if "too many" in told or "exceeded maximum resolution" in told or "would load" in told or "limit" in told:
            raise _TooMuch(told)
        if code in {503, 504} and ("timed out" in told or "timeout" in told):
            raise _TooMuch(told)
        if 300 <= code < 400:
            raise self._error("redirect", f"{self._where} redirects")
        raise self._error(f"http_{code}", f"{self._where} answered {code}" + (f": {told}" if told else ""))

    def _error(self, reason: str, detail: str) -> FetchError:
        return FetchError(reason, detail, hint=_HINTS.get(reason, ""))

    @property
    def _where(self) -> str:
        parts = urlsplit(self.connection.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


_WORTH_ANOTHER = {"timeout", "connection_closed", "http_429", "http_500", "http_502", "http_503", "http_504"}
_HINTS = {
    "refused": "is Prometheus running there, and is the port right?",
    "dns": "the host name is unknown here",
    "timeout": "the server is slow: load the generated recording rules, or review a shorter --range",
    "too_much": "raise --query.max-samples or --query.timeout of the server, or load the generated recording rules",
    "http_401": "set report.prometheus.authorization (or basic_auth) in the configuration",
    "http_403": "these credentials may not query this server or tenant",
    "http_404": "is this Prometheus? Give its address, not an exporter's; or its API may be under a prefix that the URL lacks "
    "(Mimir /prometheus, VictoriaMetrics cluster /select/0/prometheus)",
    "redirect": "give the address that it redirects to; credentials are not carried along",
    "not_prometheus": "is this a login page or Grafana? Give the address of Prometheus itself",
    "tls": "check the certificate, or set tls_config",
}
