"""One deadline for a whole exchange, and the socket that keeps it.

`Deadline` counts down; `Wire` is an open socket whose every read and write is allowed only the time that is left, so that a body
that drips one byte a second ends when the deadline does. `Resolver` and `dial` turn a host into such a socket.
Called by `sources/http.py`; nothing here knows HTTP.
"""

from __future__ import annotations

import io
import ipaddress
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from llm_exporter.errors import FetchError
from llm_exporter.sources.tls import no_server_name

BUFFER_BYTES = 64 * 1024

AddressInfo = tuple[int, int, int, str, Any]  # as socket.getaddrinfo gives it
Lookup = Callable[..., Sequence[AddressInfo]]


class Deadline:
    """The time that one call may take in all.

    Attributes:
        timeout_seconds: the whole time allowed.
        phase: what is being waited for, in words; it ends up in the error text.
    """

    __slots__ = ("_ends_at", "_started_at", "phase", "timeout_seconds")

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.phase = "starting"
        self._started_at = time.monotonic()
        self._ends_at = self._started_at + timeout_seconds

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    def remaining(self) -> float:
        """Seconds left, above 0. Raises: TimeoutError when none are."""
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Resolver:
    """Looks up one host in a daemon thread, since `getaddrinfo` itself knows no timeout.

    At most one lookup is outstanding: when it outlives a deadline, the next call waits for the same one instead of starting another,
    so a resolver that hangs for ever costs one thread per target.
    """

    def __init__(self, host: str, port: int, lookup: Lookup = socket.getaddrinfo) -> None:
        self._host, self._port, self._lookup = host, port, lookup
        self._pending: _Outstanding | None = None
        self._literal: Sequence[AddressInfo] | None = None
        with suppress(
            ValueError, OSError
        ):  # OSError: an address that this machine cannot use (its zone is none of ours); said at the lookup
            ipaddress.ip_address(host)
            self._literal = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)

    def addresses(self, deadline: Deadline) -> Sequence[AddressInfo]:
        """Addresses in the order of the system's preference. Raises: FetchError("dns")."""
        if self._literal is not None:
            return self._literal
        deadline.phase = "looking up the host name"
        if self._pending is None:
            self._pending = _Outstanding()
            threading.Thread(target=self._run, args=(self._pending,), name=f"dns {self._host}", daemon=True).start()
        if not self._pending.done.wait(deadline.remaining()):
            raise FetchError("dns", f"no answer about {self._host!r} from the resolver in {deadline.timeout_seconds:g} s")
        done, self._pending = self._pending, None
        if isinstance(done.error, UnicodeError):
            raise FetchError("dns", f"{self._host!r} is no valid host name")
        if done.error is not None:
            raise FetchError("dns", f"{self._host!r}: {done.error.strerror or 'lookup failed'}")
        return done.found

    def _run(self, outstanding: _Outstanding) -> None:
        try:
            outstanding.found = self._lookup(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            outstanding.error = error
        finally:
            outstanding.done.set()


class _Outstanding:
    """A lookup on its way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.found: Sequence[AddressInfo] = ()
        self.error: OSError | UnicodeError | None = None


def dial(addresses: Sequence[AddressInfo], deadline: Deadline) -> socket.socket:
    """Connects to the first address that answers.

    Each address may take an equal share of the time left, so that a black hole in front of a good address does not eat it all.
    """
    deadline.phase = "connecting"
    failure: OSError = TimeoutError()
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(deadline.remaining() / (len(addresses) - position))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
        else:
            return sock
    raise failure


class Wire:
    """An open socket under a deadline; quacks like the socket that `http.client` wants.

    Attributes:
        deadline: of the exchange that is going on; the owner sets it before each.
        received: bytes of the answer so far; the owner sets it to 0 before each.
        loopback: whether the peer is this machine.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.sock = sock
        self.deadline = deadline
        self.received = 0
        self.loopback = _is_loopback(sock)
        self._reader: _Reader | None = None
        self._frozen = False

    def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Shakes hands; the deadline holds for the handshake as a whole. Raises: FetchError("tls") for a name that no server can have."""
        self.deadline.phase = "in the TLS handshake"
        self.sock.settimeout(self.deadline.remaining())
        try:
            name = server_name.encode("idna").decode("ascii")  # here, since `wrap_socket` loses the socket where this fails
            self.sock = context.wrap_socket(self.sock, server_hostname=name)
        except ssl.SSLError:  # some of them are ValueErrors too
            raise
        except ValueError:
            raise no_server_name(server_name) from None

    def sendall(self, data: bytes) -> None:
        """Sends all of it or raises TimeoutError."""
        self.sock.settimeout(self.deadline.remaining())
        self.sock.sendall(data)

    def makefile(self, mode: str = "rb") -> io.BufferedReader:
        """A buffered reader for one answer."""
        assert mode == "rb"
        self._frozen = False
        self._reader = _Reader(_Incoming(self), BUFFER_BYTES)
        return self._reader

    def read_into(self, buffer: memoryview) -> int | None:
        """One `recv`, within the deadline."""
        if self._frozen:
            return None
        self.sock.settimeout(self.deadline.remaining())
        count = self.sock.recv_into(buffer)
        self.received += count
        return count

    def out_of_step(self) -> bool:
        """Whether bytes have come that belong to no answer: the server counts wrongly. Bytes still on their way are not seen."""
        self._frozen = True
        if self._reader is not None and self._reader.peek(1):
            return True
        plain = not isinstance(self.sock, ssl.SSLSocket)  # TLS has records of its own between answers
        with suppress(OSError):
            return plain and self.readable(0) and bool(self.sock.recv(1, socket.MSG_PEEK))
        return False

    def gone(self) -> bool:
        """Whether a kept connection cannot serve another request: the server closed it, or sent what nobody asked for."""
        return not isinstance(self.sock, ssl.SSLSocket) and self.readable(0)

    def readable(self, seconds: float) -> bool:
        """Whether a read would return within so many seconds (data, or the end of the connection)."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        poll = select.poll()  # unlike select(), works for descriptors above 1023
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Does nothing: `http.client` calls it while the body is still to be read. See `shut`."""

    def hang_up(self) -> None:
        """Ends the connection but keeps the descriptor; wakes a thread that reads from it."""
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # that of SSLSocket would take its TLS state away from the reader

    def shut(self) -> None:
        """Closes the socket."""
        self._reader = None
        with suppress(OSError):
            self.sock.close()


def _is_loopback(sock: socket.socket) -> bool:
    with suppress(OSError, ValueError, IndexError):
        return ipaddress.ip_address(sock.getpeername()[0]).is_loopback
    return False


class _Incoming(io.RawIOBase):
    """The read side of a wire as a raw stream."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._wire.read_into(cast("memoryview", buffer))


class _Reader(io.BufferedReader):
    """Stays open when `http.client` closes it at the end of a body, so that `Wire.out_of_step` can look what else has come."""

    def close(self) -> None:
        pass
