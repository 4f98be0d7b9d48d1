"""Posts the summary of a review to a webhook.

In: the URL (a secret) and the review's summary. Out: nothing. Called by the command `report`. The body is JSON with `text`, which Slack,
Mattermost, Rocket.Chat and Google Chat show as it is, and the window for programs. No message holds the URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from llm_exporter.errors import FetchError

TIMEOUT_SECONDS = 10.0
MAX_TEXT = 3500


def post_summary(url: str, text: str, window: Mapping[str, Any]) -> None:
    """Post once; no redirect is followed.

    Raises:
        FetchError: not accepted. The text names the reason and never the URL.
    """
    short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 2] + " …"
    try:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(url, json={"text": short, "window": dict(window)}, timeout=TIMEOUT_SECONDS, allow_redirects=False)
    except requests.exceptions.Timeout:
        raise FetchError("timeout", f"the webhook did not answer within {TIMEOUT_SECONDS:.0f} s") from None
    except (requests.exceptions.RequestException, ValueError) as error:
        raise FetchError(
            "refused", f"the webhook cannot be reached: {type(error).__name__}", hint="check the URL in webhook_url_file"
        ) from None
    if not 200 <= answer.status_code < 300:
        raise FetchError(
            f"http_{answer.status_code}", f"the webhook answered {answer.status_code}", hint="check the URL in webhook_url_file"
        )
