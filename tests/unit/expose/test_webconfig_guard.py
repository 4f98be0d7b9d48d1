"""The guard: users, headers, rate, and a file that changes while the exporter runs."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from llm_exporter.errors import ConfigError
from llm_exporter.expose import webguard
from llm_exporter.expose.webguard import WebGuard, wsgi_guard


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


ALICE = hashed("wonderland")


def basic(user: str, password: str | bytes) -> str:
    data = password if isinstance(password, bytes) else password.encode()
    return "Basic " + base64.b64encode(user.encode() + b":" + data).decode()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "web.yml"
        fresh = tmp_path / "web.new"
        fresh.write_text(text)
        fresh.replace(path)
        return path

    return write


def users(**hashes: str) -> str:
    return "basic_auth_users:\n" + "".join(f"  {name}: {text}\n" for name, text in hashes.items())


def admits(guard: WebGuard, header: str) -> bool:
    return guard.authorise({"HTTP_AUTHORIZATION": header} if header else {})


@pytest.mark.parametrize(
    ("header", "right"),
    [
        (basic("alice", "wonderland"), True),
        (basic("alice", "wonderland").replace("Basic", "bASIC"), True),
        (basic("alice", "Wonderland"), False),
        (basic("alice", ""), False),
        (basic("alice", "wonderland\0"), False),
        (basic("alice", "w" * 100), False),
        (basic("alice", b"\xff\xfe"), False),
        (basic("bob", "wonderland"), False),
        (basic("", "wonderland"), False),
        ("", False),
        ("Basic", False),
        ("Basic !!!", False),
        ("Basic " + base64.b64encode(b"alice").decode(), False),
        ("Basic " + base64.b64encode(b"\xff:wonderland").decode(), False),
        ("Basic " + "A" * 10_000, False),
        ("Bearer wonderland", False),
        ("Basic $2b$04$7gZfhUE81HVAU7LDgxmOrOz9KQvdIlYoIoxOrAxDO8hz22Q0tpv6W", False),
    ],
)
def test_who_is_let_in(write: Callable[[str], Path], header: str, right: bool) -> None:
    guard = WebGuard(write(users(alice=ALICE)))
    for _ in range(2):  # checked, then remembered
        assert admits(guard, header) is right


def test_a_hash_made_by_htpasswd_is_understood(write: Callable[[str], Path]) -> None:
    text = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
    assert admits(WebGuard(write(users(alice=text))), basic("alice", "fakepassword"))


def test_passwords_beyond_bcrypts_72_bytes_work_as_with_other_tools(write: Callable[[str], Path]) -> None:
    guard = WebGuard(write(users(alice=hashed("p" * 72))))
    assert admits(guard, basic("alice", "p" * 72 + "tail"))


def test_everybody_is_let_in_without_users(write: Callable[[str], Path]) -> None:
    assert admits(WebGuard(write("{}\n")), "")


def test_a_right_password_is_checked_once_and_guesses_do_not_push_it_out(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []

    def checkpw(password: bytes, hash_: bytes) -> bool:
        checks.append(password)
        return password == b"wonderland"

    monkeypatch.setattr(webguard.bcrypt, "checkpw", checkpw)
    guard = WebGuard(write(users(alice=ALICE)))
    for _ in range(3):
        assert admits(guard, basic("alice", "wonderland"))
    assert len(checks) == 1
    for number in range(2000):
        assert not admits(guard, basic("alice", f"guess {number}"))
    assert admits(guard, basic("alice", "wonderland"))
    assert len(checks) == 2001


def test_a_user_that_does_not_exist_costs_as_much_as_one_that_does(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    monkeypatch.setattr(webguard.bcrypt, "checkpw", lambda _, hash_: bool(costs.append(hash_[:7])))
    guard = WebGuard(write(users(alice=hashed("x", 6))))
    for user in ("alice", "mallory"):
        assert not admits(guard, basic(user, "y"))
    assert costs[0] == costs[1] == b"$2b$06$"


def test_the_stand_in_hash_is_one_that_bcrypt_accepts(write: Callable[[str], Path]) -> None:
    stand_in = webguard._nobody({"alice": ALICE.encode()})
    assert bcrypt.checkpw(b"x", stand_in) is False
    started_at = time.perf_counter()
    bcrypt.checkpw(b"x", webguard._nobody({"alice": hashed("x", 8).encode()}))
    assert time.perf_counter() - started_at > 0.002  # it does the work


def test_what_is_remembered_holds_no_password(write: Callable[[str], Path]) -> None:
    guard = WebGuard(write(users(alice=ALICE)))
    admits(guard, basic("alice", "wonderland"))
    admits(guard, basic("alice", "guessword"))
    text = repr(vars(guard)) + repr(vars(guard._passwords))
    assert "wonderland" not in text
    assert "guessword" not in text


def test_a_changed_file_is_in_force_after_a_second(write: Callable[[str], Path], clock: Clock) -> None:
    guard = WebGuard(write(users(alice=ALICE)), clock=clock)
    write(users(bob=hashed("builder")) + "http_server_config: {headers: {X-Frame-Options: deny}}\n")
    clock.now += 0.5
    guard.refresh()
    assert admits(guard, basic("alice", "wonderland"))
    clock.now += 0.6
    guard.refresh()
    assert not admits(guard, basic("alice", "wonderland"))
    assert admits(guard, basic("bob", "builder"))
    assert guard.headers() == {"X-Frame-Options": "deny"}


@pytest.mark.parametrize(
    "broken", ["", "basic_auth_users: {alice: nonsense}\n", "a: [\n", None, "{}\ntls_server_config: {cert_file: a, key_file: b}\n"]
)
def test_a_broken_file_keeps_the_last_good_one_and_says_so_once(
    write: Callable[[str], Path], clock: Clock, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = write(users(alice=ALICE))
    guard = WebGuard(path, clock=clock)
    if broken is None:
        path.unlink()
    else:
        write(broken)
    for _ in range(3):
        clock.now += 2
        guard.refresh()
        assert not admits(guard, "")
        assert admits(guard, basic("alice", "wonderland"))
    assert str(path) in guard.problem
    assert len(caplog.records) == 1
    write(users(carol=hashed("c")))
    clock.now += 2
    guard.refresh()
    assert guard.problem == ""
    assert admits(guard, basic("carol", "c"))


def test_a_file_that_is_wrong_at_the_start_is_refused(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError):
        WebGuard(write("nonsense: 1\n"))


def test_rate_limit_is_a_bucket(write: Callable[[str], Path], clock: Clock) -> None:
    guard = WebGuard(write("rate_limit: {interval: 2s, burst: 3}\n"), clock=clock)
    assert [guard.within_rate() for _ in range(4)] == [True, True, True, False]
    clock.now += 2
    assert [guard.within_rate() for _ in range(2)] == [True, False]
    clock.now += 1000
    assert [guard.within_rate() for _ in range(4)] == [True, True, True, False]


def test_no_rate_limit_without_an_interval(write: Callable[[str], Path], clock: Clock) -> None:
    guard = WebGuard(write("rate_limit: {interval: 0, burst: 0}\n"), clock=clock)
    assert all(guard.within_rate() for _ in range(100))


# ---- WSGI ----------------------------------------------------------------------------------------------------------------


def call(application: Any, **environ: str) -> tuple[str, dict[str, str], bytes]:
    seen: list[Any] = []
    body = b"".join(application({"REQUEST_METHOD": "GET", **environ}, lambda status, headers: seen.append((status, dict(headers)))))
    return (*seen[0], body)


def hello(_: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("X-Frame-Options", "sameorigin")])
    return [b"hello"]


def test_strangers_get_401_and_headers_and_never_reach_the_application(write: Callable[[str], Path]) -> None:
    text = users(alice=ALICE) + "http_server_config: {headers: {X-Frame-Options: deny, X-Content-Type-Options: nosniff}}\n"
    reached = []

    def application(environ: Any, start: Any) -> list[bytes]:
        reached.append(environ)
        return hello(environ, start)

    guarded = wsgi_guard(application, WebGuard(write(text)))
    status, headers, body = call(guarded)
    assert (status, body) == ("401 Unauthorized", b"Unauthorized\n")
    assert headers["WWW-Authenticate"].startswith("Basic ")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert reached == []
    assert call(guarded, REQUEST_METHOD="HEAD")[2] == b""
    status, headers, body = call(guarded, HTTP_AUTHORIZATION=basic("alice", "wonderland"))
    assert (status, body) == ("200 OK", b"hello")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "sameorigin"  # the application knows better


def test_too_many_requests(write: Callable[[str], Path]) -> None:
    guarded = wsgi_guard(hello, WebGuard(write("rate_limit: {interval: 1h, burst: 1}\n")))
    assert [call(guarded)[0] for _ in range(2)] == ["200 OK", "429 Too Many Requests"]


def test_one_check_at_a_time(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, first = [], [], threading.Event()

    def checkpw(password: bytes, _: bytes) -> bool:
        running.append(1)
        most.append(len(running))
        first.wait(0.02)
        running.pop()
        return False

    monkeypatch.setattr(webguard.bcrypt, "checkpw", checkpw)
    guard = WebGuard(write(users(alice=ALICE)))
    threads = [threading.Thread(target=admits, args=(guard, basic("alice", str(n)))) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 5
