"""The deadline of an exchange, and the lookup of its host."""

from __future__ import annotations

import pytest

from llm_exporter.errors import FetchError
from llm_exporter.sources.deadline import Deadline, Resolver


@pytest.mark.parametrize("host", ["fe80::1%nosuch0", "fe80::1%25nosuch0"])
def test_an_address_that_this_machine_cannot_use_is_a_failed_lookup_and_no_bug(host: str) -> None:
    resolver = Resolver(host, 80)
    with pytest.raises(FetchError) as caught:
        resolver.addresses(Deadline(5.0))
    assert caught.value.reason == "dns"


def test_a_literal_address_needs_no_lookup() -> None:
    def lookup(*_: object, **__: object) -> list[tuple[int, int, int, str, object]]:
        raise AssertionError

    assert Resolver("::1", 80, lookup).addresses(Deadline(5.0))
    assert Resolver("127.0.0.1", 80, lookup).addresses(Deadline(5.0))
