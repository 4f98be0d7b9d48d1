"""Log lines as logfmt or JSON, one line each, always with target and source where they apply."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_FIELDS = ("target", "source", "engine", "reason", "probe_module", "task")


class _Formatter(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("llm_exporter."),
            "msg": record.getMessage().strip(),
        }
        for name in _FIELDS:
            value = getattr(record, name, None)
            if value:
                fields[name] = str(value)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(fields, ensure_ascii=False)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: str) -> str:
    if value and all(c.isalnum() or c in "-_.:/" for c in value):
        return value
    return json.dumps(value, ensure_ascii=False)


def set_up(level: str, form: str) -> None:
    """Configures the root logger: `level` debug, info, warn or error; `form` logfmt or json. Lines go to standard error."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(_Formatter(as_json=form == "json"))
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel({"warn": "WARNING"}.get(level, level.upper()))
    for noisy in ("apscheduler", "urllib3", "werkzeug"):
        logging.getLogger(noisy).setLevel("WARNING")
    logging.getLogger("apscheduler.executors").setLevel("CRITICAL")  # it logs each failure of a job; schedule.py does, too
