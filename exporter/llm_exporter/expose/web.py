"""The HTTP side (CONTRACT 5): routes over objects that are passed in; no state of its own but the request limit.

Everything but `/probe` is answered from memory. A target that hangs cannot make a page hang, and the number of requests at once is
bounded: probes, which wait for their target, have a bound of their own below it, so that `/metrics` and `/-/healthy` always answer.
"""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from flask import Flask, Response, abort, jsonify, render_template, request
from werkzeug.security import safe_join

from llm_exporter import __version__
from llm_exporter.errors import ConfigError
from llm_exporter.expose.page import Page, compressed

# Bodies below this are not worth the CPU of gzip.
GZIP_FROM_BYTES = 1024
PLAIN = "text/plain; charset=utf-8"


class Site(Protocol):
    """What the routes need of the daemon."""

    page: Page

    def ready(self) -> bool:
        """Whether the configuration is loaded and scraping has begun."""

    def config_text(self) -> str:
        """The configuration as written, secrets hidden."""

    def reload_problem(self) -> str:
        """Why the last load of the configuration failed; empty where it did not."""

    def overview(self) -> list[dict[str, Any]]:
        """A row per target, for the status page and the API."""

    def target_document(self, name: str) -> dict[str, Any] | None:
        """Everything about one target; None where there is no such target."""

    def trace(self, name: str) -> list[dict[str, Any]] | None:
        """Raw line → canonical field → signal → metric of one target."""

    def reload(self) -> None:
        """Loads the configuration again; raises ConfigError and keeps the old one."""

    def probe(self, target: str, module: str, timeout: float | None) -> tuple[int, str | Page]:
        """One probe: (status, error text or page of this run's metrics alone)."""

    def reports_directory(self) -> Path | None:
        """Where capacity reviews are kept; None without a schedule."""

    def reports(self) -> Sequence[dict[str, Any]]:
        """Rows of the index of capacity reviews, newest first."""


@dataclass(slots=True)
class WebSettings:
    """Switches that a reload may change; read at each request."""

    enable_reload: bool = False
    enable_debug: bool = True
    max_requests: int = 40


@dataclass(slots=True)
class Limit:
    """Counts requests in flight."""

    in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, most: int) -> bool:
        """Takes a place; False where none is left."""
        with self.lock:
            if self.in_flight >= most:
                return False
            self.in_flight += 1
            return True

    def leave(self) -> None:
        """Gives the place back."""
        with self.lock:
            self.in_flight -= 1


def application(site: Site, settings: Callable[[], WebSettings]) -> Callable[..., Any]:
    """The WSGI application."""
    app = Flask("llm_exporter", root_path=str(Path(__file__).parent), static_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.strict_slashes = False
    _add_pages(app, site, settings)
    _add_operations(app, site, settings)
    _add_reports(app, site)
    return _limited(app, settings)


def _limited(app: Callable[..., Any], settings: Callable[[], WebSettings]) -> Callable[..., Any]:
    pages, probes = Limit(), Limit()
    # of the server's threads, whose number a reload does not change
    most_probes = max(1, settings().max_requests // 2)

    def bounded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        waits = environ.get("PATH_INFO", "").rstrip("/") == "/probe"
        limit, most = (probes, most_probes) if waits else (pages, settings().max_requests)
        if not limit.enter(most):
            start_response("503 Service Unavailable", [("Content-Type", PLAIN), ("Retry-After", "1")])
            what = f"probes at once ({most}, half of web.max_requests)" if waits else "requests at once (web.max_requests)"
            return [f"too many {what}\n".encode()]
        try:
            # bodies are complete before they are sent, so the place can be given back when the application returns
            return app(environ, start_response)
        finally:
            limit.leave()

    return bounded


def _text(body: str, status: int = 200) -> Response:
    return Response(body, status, content_type=PLAIN)


def page_response(page: Page) -> Response:
    """The exposition in the format and encoding that the request asks for."""
    body, content_type = page.render(request.headers.get("Accept", ""))
    response = Response(content_type=content_type)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    if (
        request.accept_encodings.quality("gzip") > 0
        and "gzip" in request.headers.get("Accept-Encoding", "")
        and len(body) > GZIP_FROM_BYTES
    ):
        body = compressed(body)
        response.headers["Content-Encoding"] = "gzip"
    response.data = body
    return response


def _add_pages(app: Flask, site: Site, settings: Callable[[], WebSettings]) -> None:
    @app.get("/metrics")
    def metrics() -> Response:
        return page_response(site.page)

    @app.get("/")
    def index() -> str:
        return render_template(
            "index.html",
            version=__version__,
            rows=site.overview(),
            reports=site.reports_directory() is not None,
            reload_problem=site.reload_problem(),
        )

    @app.get("/api/v1/targets")
    def api_targets() -> Response:
        return jsonify({"targets": site.overview()})

    @app.get("/api/v1/targets/<path:name>")
    def api_target(name: str) -> Response:
        document = site.target_document(name)
        if document is None:
            return _missing(name)
        return jsonify(document)

    @app.get("/debug/target/<path:name>")
    def debug_target(name: str) -> Response | str:
        if not settings().enable_debug:
            abort(404)
        rows = site.trace(name)
        if rows is None:
            return _missing(name)
        if request.accept_mimetypes.best_match(["text/html", "application/json"]) == "application/json":
            return jsonify({"target": name, "path": rows})
        return render_template("debug.html", name=name, rows=rows)

    @app.get("/probe")
    def probe() -> Response:
        target, module = request.args.get("target", ""), request.args.get("module", "")
        if not target or not module:
            return _text("give ?target=NAME&module=MODULE\n", 400)
        header = request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", "")
        try:
            timeout = float(header) if header else None
        except ValueError:
            return _text("X-Prometheus-Scrape-Timeout-Seconds is no number\n", 400)
        status, answer = site.probe(target, module, timeout)
        return _text(answer, status) if isinstance(answer, str) else page_response(answer)


def _missing(name: str) -> Response:
    response = jsonify({"error": f"no target named {name!r}"})
    response.status_code = 404
    return response


def _add_operations(app: Flask, site: Site, settings: Callable[[], WebSettings]) -> None:
    @app.get("/config")
    def config() -> Response:
        return Response(site.config_text(), content_type="text/yaml; charset=utf-8")

    @app.get("/-/healthy")
    def healthy() -> Response:
        return _text("healthy\n")

    @app.get("/-/ready")
    def ready() -> Response:
        return _text("ready\n") if site.ready() else _text("not ready\n", 503)

    @app.post("/-/reload")
    @app.put("/-/reload")
    def reload() -> Response:
        if not settings().enable_reload:
            return _text("reload by HTTP is off: set web.enable_reload, or send SIGHUP\n", 403)
        if _foreign_origin():
            return _text("refused: the request comes from another origin\n", 403)
        try:
            site.reload()
        except ConfigError as error:
            return _text(f"failed to reload, the old configuration stays:\n{error}\n", 500)
        return _text("reloaded\n")


def _foreign_origin() -> bool:
    """Whether a browser sent the request from another site's page: curl and scripts send neither header."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    try:
        return origin is not None and urlsplit(origin).netloc != request.host
    except ValueError:  # a broken address
        return True


def _add_reports(app: Flask, site: Site) -> None:
    @app.get("/reports/")
    def reports() -> str:
        if site.reports_directory() is None:
            abort(404)
        return render_template("reports.html", rows=site.reports())

    @app.get("/reports/<path:name>")
    def report(name: str) -> Response:
        directory = site.reports_directory()
        path = safe_join(str(directory.resolve()), name) if directory is not None else None
        if path is None or not Path(path).is_file():
            abort(404)
        return Response(Path(path).read_bytes(), content_type=mimetypes.guess_type(path)[0] or "application/octet-stream")
