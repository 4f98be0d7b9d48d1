"""One HTTP/1.1 exchange on a raw socket, with honest moments.

In: an address, a request as bytes, a deadline. Out: when names were resolved, TCP and TLS stood, the last byte of the request left,
and each piece of the answer with the moments between which it arrived. `sources/probe.py` is the only caller.

Why not a library: we need the moment just before the last byte leaves, and the kernel's time of each arrival, which is known even when
this process was not running then (`sources/arrival.py`). TLS goes through memory buffers, so that the bytes of the socket stay ours.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from llm_exporter.errors import FetchError
from llm_exporter.sources.arrival import SO_TIMESTAMPNS, Arrival, Waiter, place, stamp_of, wall_offset_ns
from llm_exporter.sources.tls import no_server_name

READ_BYTES = 65536
_REST_SECONDS = 0.001  # from the start of the sending thread to the request, so that the other one waits by then


class Deadline:
    """A moment on the monotonic clock after which nothing may take longer."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self, at_most: float | None = None) -> float:
        """Seconds left, capped.

        Raises:
            FetchError: timeout, where none are left.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise FetchError("timeout", "the total deadline passed")
        return left if at_most is None else min(left, at_most)


class Connection:
    """An open connection to one server. Use as a context manager.

    Attributes:
        dns_seconds, tcp_seconds, tls_seconds: how long each part took; None where it had no part.
        sent_at: monotonic moment just before the last byte of the request was given to the kernel.
        given_at: monotonic moment just after; the byte left between the two. None while some of the request is still here.
        answered_at: monotonic moment at which the first byte of the answer came.
        request_started: bytes of the request itself were given to the kernel.
        lag_seconds: longest time from the kernel's receipt to our read; large where this machine was busy.
    """

    def __init__(self) -> None:
        self.dns_seconds: float | None = None
        self.tcp_seconds: float | None = None
        self.tls_seconds: float | None = None
        self.sent_at: float | None = None
        self.given_at: float | None = None
        self.answered_at: float | None = None
        self.request_started = False
        self.lag_seconds: float | None = None
        self._socket: socket.socket | None = None
        self._waiter: Waiter | None = None
        self._offset_ns = 0
        self._sender: threading.Thread | None = None
        self._send_error: FetchError | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._socket is not None and self._sender is not None and self._sender.is_alive():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._sender.join(1.0)
        if self._waiter is not None:
            self._waiter.close()
        if self._socket is not None:
            self._socket.close()

    def open(self, host: str, port: int, context: ssl.SSLContext | None, server_name: str, deadline: Deadline) -> None:
        """Resolves, connects and shakes hands.

        Raises:
            FetchError: dns, connect, tls, tls_verify or timeout.
        """
        started = time.monotonic()
        addresses = _resolve(host, port, deadline)
        resolved = time.monotonic()
        self.dns_seconds = resolved - started
        self._socket = sock = _connect(addresses, deadline)
        connected = time.monotonic()
        self.tcp_seconds = connected - resolved
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # no Linux: our own clock then
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.settimeout(deadline.left())  # reads come after a wait for bytes, so they never last
        self._waiter = Waiter(sock, connected)
        self._offset_ns = wall_offset_ns()
        if context is not None:
            try:
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
            except ValueError:
                raise no_server_name(server_name) from None
            self._shake_hands(deadline)
            self.tls_seconds = time.monotonic() - connected

    def send(self, request: bytes, deadline: Deadline) -> None:
        """Begins to send the request in a thread of its own, which notes the moment before the last bytes went to the kernel.

        So this thread waits for the answer before the request leaves. On a machine with more work than cores the sender loses its core as
        soon as a server beside it has something to do, and would ask for the answer only after it had come. The moment is taken before
        and not after the call: the server can answer before the call returns. What fails here is raised by `pieces`.
        """
        if self._tls is not None:
            self._tls.write(request)
            request = self._outgoing.read()
        self._sender = threading.Thread(target=self._send_soon, args=(request, deadline), daemon=True, name="probe-send")
        assert self._waiter is not None
        self._waiter.restart(time.monotonic())
        self._sender.start()

    def _send_soon(self, request: bytes, deadline: Deadline) -> None:
        time.sleep(_REST_SECONDS)
        self.request_started = True
        try:
            self._send_raw(request, deadline)
            self.given_at = time.monotonic()
        except FetchError as error:
            self._send_error = error.with_traceback(None)
            assert self._socket is not None
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for an answer

    def pieces(self, deadline: Deadline, idle_seconds: Callable[[], float]) -> Iterator[tuple[Arrival, bytes]]:
        """(moments of arrival, bytes) until the server closes. `idle_seconds` is asked before each read.

        Raises:
            FetchError: timeout; truncated where the connection broke; what failed in sending, where no answer came.
        """
        while True:
            try:
                arrival, raw = self._receive(deadline.left(idle_seconds()))
            except TimeoutError:
                deadline.left()
                raise FetchError("timeout", "the stream fell silent") from None
            except OSError as error:
                raise self._send_error or FetchError("truncated", f"the connection broke: {error.strerror or error}") from None
            if self.answered_at is None:
                self.answered_at = arrival.first_at
            data = raw if self._tls is None else self._decrypt(raw)
            if data:
                yield arrival, data
            if not raw:
                if self._send_error is not None:
                    raise self._send_error
                return

    def _shake_hands(self, deadline: Deadline) -> None:
        assert self._tls is not None
        try:
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._send_raw(self._outgoing.read(), deadline)
                    _, raw = self._receive(deadline.left())
                    if raw:
                        self._incoming.write(raw)
                    else:
                        self._incoming.write_eof()
                else:
                    self._send_raw(self._outgoing.read(), deadline)
                    return
        except ssl.SSLCertVerificationError as error:
            raise FetchError("tls_verify", error.verify_message) from None
        except TimeoutError:
            raise FetchError("timeout", "no end of the TLS handshake") from None
        except OSError as error:  # SSLError is one
            raise FetchError("tls", str(getattr(error, "reason", "") or error.strerror or error)) from None

    def _decrypt(self, raw: bytes) -> bytes:
        assert self._tls is not None
        if raw:
            self._incoming.write(raw)
        else:
            self._incoming.write_eof()
        plain = bytearray()
        try:
            while data := self._tls.read(READ_BYTES):
                plain += data
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        except ssl.SSLError as error:
            raise FetchError("truncated", f"TLS broke: {error.reason}") from None
        return bytes(plain)

    def _send_raw(self, data: bytes, deadline: Deadline) -> None:
        assert self._socket is not None
        view = memoryview(data)
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        try:
            while view:
                self._socket.settimeout(deadline.left())
                room.poll(deadline.left() * 1e3)  # before the moment is taken, since a full buffer can make it wait long
                deadline.left()
                self.sent_at = time.monotonic()
                view = view[self._socket.send(view) :]
        except TimeoutError:
            raise FetchError("timeout", "the server does not take the request") from None
        except OSError as error:
            raise FetchError("truncated", f"the connection broke while sending: {error.strerror or error}") from None

    def _receive(self, seconds: float) -> tuple[Arrival, bytes]:
        """(moments of arrival, raw bytes); no bytes at the end of the connection."""
        assert self._socket is not None
        assert self._waiter is not None
        wait = self._waiter.wait(seconds)
        before = time.monotonic()
        raw, ancillary, _, _ = self._socket.recvmsg(READ_BYTES, 64)
        if len(raw) < READ_BYTES:
            self._waiter.emptied(before)
        now = time.monotonic()
        stamp_ns = stamp_of(ancillary)
        stamped_at = None if stamp_ns is None else (stamp_ns - self._offset_ns) / 1e9
        arrival = place(wait, stamped_at, now)
        if stamped_at is not None:
            self.lag_seconds = max(now - arrival.last_at, self.lag_seconds or 0.0)
        return arrival, raw


def _resolve(host: str, port: int, deadline: Deadline) -> list[tuple[int, tuple[object, ...]]]:
    """(family, address) in the resolver's order. A resolver cannot be given a deadline, so it runs in a thread that is left behind."""
    answer: list[list[tuple[int, tuple[object, ...]]] | OSError] = []

    def ask() -> None:
        try:
            answer.append([(row[0], row[4]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except (OSError, UnicodeError) as error:
            answer.append(error if isinstance(error, OSError) else OSError(str(error)))

    if _is_literal(host):
        ask()
    else:
        thread = threading.Thread(target=ask, daemon=True, name="probe-dns")
        thread.start()
        thread.join(deadline.left())
    if not answer:
        raise FetchError("dns", f"no answer about {host} within the deadline")
    if isinstance(answer[0], OSError):
        raise FetchError("dns", f"{host}: {answer[0].strerror or answer[0]}")
    return answer[0]


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _connect(addresses: list[tuple[int, tuple[object, ...]]], deadline: Deadline) -> socket.socket:
    """The first address that answers; each may take its share of what is left, so that a dead one does not eat it all."""
    last: OSError | None = None
    for position, (family, address) in enumerate(addresses):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.left() / (len(addresses) - position))
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    if isinstance(last, TimeoutError):
        raise FetchError("timeout", "no answer to the connection attempt")
    raise FetchError("connect", f"{last.strerror or last}" if last else "the name has no address")
