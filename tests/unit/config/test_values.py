"""Durations, crontabs and URLs on their own."""

# tables: one case on one line

from __future__ import annotations

import pytest

from llm_exporter.config.crontab import Crontab, parse_crontab
from llm_exporter.config.durations import format_duration, parse_duration
from llm_exporter.config.urls import admits, base_of, shown_url, url_problem

DURATIONS = {
    "0": 0, "0s": 0, "5s": 5, "1m30s": 90, "500ms": 0.5, "1h": 3600, "1d": 86400, "2w": 1209600, "1y": 31536000, "1d12h": 129600, "90s": 90,
    "1y2w3d4h5m6s7ms": 31536000 + 1209600 + 259200 + 14400 + 300 + 6.007,
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations_are_those_of_prometheus(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text", ["", " ", "5", "5 s", "s", "1s1m", "1m1m", "-1s", "1.5s", "٣s", "5S", "1h ", "0x5s", "1e3s", "999999999999y"]
)
def test_what_is_no_duration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration(text)


def test_durations_are_written_short() -> None:
    assert [format_duration(seconds) for seconds in (0, 0.25, 5, 90, 3600, 86400, 90061.5)] == [
        "0", "250ms", "5s", "1m30s", "1h", "1d", "1d1h1m1s500ms",
    ]  # fmt: skip


CRONTABS = {
    "0 8 * * mon": Crontab("0", "8", "*", "*", "mon"),
    "*/15 0-2 1,15 jan-mar *": Crontab("0,15,30,45", "0,1,2", "1,15", "1,2,3", "*"),
    "0 4 * * 0": Crontab("0", "4", "*", "*", "sun"),
    "0 4 * * 7": Crontab("0", "4", "*", "*", "sun"),
    "0 4 * * 1-5": Crontab("0", "4", "*", "*", "mon,tue,wed,thu,fri"),
    "0 4 * * 5-7": Crontab("0", "4", "*", "*", "sun,fri,sat"),
    "0 4 * * */2": Crontab("0", "4", "*", "*", "sun,tue,thu,sat"),
    "5/20 4 * * SUN": Crontab("5,25,45", "4", "*", "*", "sun"),
    "0 0 29 2 *": Crontab("0", "0", "29", "2", "*"),
}


@pytest.mark.parametrize(("text", "wanted"), CRONTABS.items())
def test_crontabs_mean_what_cron_means(text: str, wanted: Crontab) -> None:
    assert parse_crontab(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "0 8 * *", "0 8 * * mon extra", "60 8 * * *", "0 24 * * *", "0 8 0 * *", "0 8 32 * *", "0 8 * 13 *", "0 8 * * 8", "0 8 * * mo",
     "5-1 8 * * *", "*/0 8 * * *", "a 8 * * *", "0 8 31 4,6 *", "0 8 1 * mon", "@weekly", "1,,2 8 * * *", "² 8 * * *", "0 8 * * L"],
)  # fmt: skip
def test_what_is_no_crontab_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_crontab(text)


GOOD_URLS = [
    "http://a", "https://a.b:1/", "http://[::1]", "http://[fe80::1]:8000/x", "http://10.0.0.1:65535/a/b%20c", "http://a_b.c-d:1", "HTTP://A:1",
]  # fmt: skip
BAD_URLS = [
    "", "a", "a:1", "ftp://a", "http://", "http:///x", "http://:80", "http://a:", "http://a:0", "http://a:65536", "http://a:x", "http://::1", "http://[::1",
    "http://u@a", "http://u:p@a", "http://a b", "http://a/b c", "http://a\\b", "http://ä", "http://a/ä", "http://a#b", "http://a?b", "http://a/?", "http://a\n",
    "http://a\x7f", "//a", "http:a", "http://a;b", "http://[::1]x:80", "http://a..b", "http://.a", "http://a..", "http://.", f"http://{'a' * 64}.b", f"http://{'a.' * 127}", "javascript:alert(1)",
    "http://[fe80::1%25eth0]:8000", "http://[::1%25lo]", "http://[fe80::1%eth0]:8000", "http://a%25b",
]  # fmt: skip


@pytest.mark.parametrize("url", GOOD_URLS)
def test_urls_that_are_fine(url: str) -> None:
    assert url_problem(url, query=False) is None


@pytest.mark.parametrize("url", BAD_URLS)
def test_urls_that_are_refused(url: str) -> None:
    problem = url_problem(url, query=False)
    assert problem
    assert all(problem)


def test_a_query_is_allowed_where_asked_for() -> None:
    assert url_problem("http://a/x?b=c", query=True) is None


SHOWN = {
    "http://a:1/x": "http://a:1/x",
    "http://u:p@a:1/x?y#z": "http://<secret>@a:1/x",
    "http://a/x?p=s@t": "http://<secret>@t",
    "u:p@a": "<secret>@a",
    "http://u:p@q@a": "http://<secret>@a",
    "http://u:p?x@a/b": "http://<secret>@a/b",
    "http://a/x#secret": "http://a/x",
}


@pytest.mark.parametrize(("url", "wanted"), SHOWN.items())
def test_shown_urls_hide_user_and_query(url: str, wanted: str) -> None:
    assert shown_url(url) == wanted


def test_probe_urls_are_admitted_below_a_base_only() -> None:
    allowed = ["http://a:8000/v", "https://b", "http://c/d%20e"]
    admitted = [
        "http://a:8000/v", "http://a:8000/v/w", "HTTP://A:8000/v/", "https://b", "https://b:443/x", "https://b/x/y.z/", "http://c/d%20e/f",
    ]  # fmt: skip
    refused = [
        "http://a:8000/vw", "http://a:8000", "http://a/v", "https://a:8000/v", "http://b", "https://b:444", "https://b.evil", "https://b@evil",
        "http://a:8000/v/../x", "http://a:8000/v/%2e%2E/x", "https://b?x", "file:///etc/passwd", "", "http://a:8000/V", "https://b/..",
    ]  # fmt: skip
    assert [url for url in admitted if not admits(allowed, url)] == []
    assert [url for url in refused if admits(allowed, url)] == []
    assert not admits([], "http://a")


@pytest.mark.parametrize(
    "rest",
    ["..%2fadmin", "..%2Fadmin", "..;/admin", "..;x=y/admin", ";/admin", "..%5cadmin", "%252e%252e/admin", "%2e%2e%2fadmin", "%2e./admin", "./x",
     "x/../../admin", ".../x", "%0d%0aX", "x%20y", "%00", "/x", "x//y", "//"],
)  # fmt: skip
def test_what_a_server_could_read_as_another_path_is_not_admitted(rest: str) -> None:
    assert not admits(["http://a:8000/ok"], f"http://a:8000/ok/{rest}")


@pytest.mark.parametrize("url", ["http://a/x", "HTTP://A:80/x/", "http://a:80/x//", "http://A//x"])
def test_one_place_has_one_form(url: str) -> None:
    assert base_of(url) == base_of("http://a/x")
    assert base_of(url).text == "http://a/x"
    assert base_of(base_of(url).text) == base_of(url)


def test_forms_keep_apart_what_differs() -> None:
    urls = [
        "http://a",
        "https://a",
        "http://a:81",
        "http://a/x",
        "http://a/X",
        "http://b",
        "http://a.",
        "http://[::1]",
        "http://[::1]:81/x",
    ]
    assert len({base_of(url) for url in urls}) == len(urls)
    assert base_of("http://[0:0:0:0:0:0:0:1]:80/") == base_of("http://[::1]")
    assert base_of("http://[::1]:81/x").text == "http://[::1]:81/x"
