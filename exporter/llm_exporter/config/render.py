"""The configuration as written, with `<secret>` in the place of secrets: what `/config` shows.

Keys, values and their spelling stay; comments and anchors are lost. Inside of authorization, basic_auth and headers only what is known
to be harmless is shown. Queries and user info of URLs are hidden everywhere.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import yaml

from llm_exporter.config.document import SECRET_SECTIONS, Document, parse_document, type_null, type_str
from llm_exporter.config.urls import shown_url
from llm_exporter.config.values import HIDDEN


def is_secret_key(key: str) -> bool:
    """Whether a key names a secret, in our words or in those that people slip in."""
    words = r"(^|_)(password|passwd|secret|secrets|token|credential|credentials|apikey|api_key|bearer|bearer_token|webhook_url)$"
    return re.search(words, key.lower().replace("-", "_")) is not None


def render_config(text: str) -> str:
    """The configuration document `text` without its secrets, as YAML.

    Raises:
        ConfigError: the text is no YAML.
    """
    return render_document(parse_document(text.encode(), "configuration"))


def render_document(document: Document) -> str:
    """As `render_config`, for a document that is parsed already."""
    if document.root is None:
        return ""
    # Aliases are written out; `Document` has counted that they stay few.
    return yaml.serialize(_hidden(document.root), Dumper=yaml.SafeDumper, allow_unicode=True, width=10_000)


def _secret() -> yaml.Node:
    return yaml.ScalarNode(type_str, HIDDEN)


def _hidden(node: yaml.Node) -> yaml.Node:
    if isinstance(node, yaml.MappingNode):
        pairs = [(_plain(key), _entry(str(key.value), value)) for key, value in node.value]
        return yaml.MappingNode(node.tag, pairs, flow_style=node.flow_style)
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_hidden(item) for item in node.value], flow_style=node.flow_style)
    return _plain(node)


def _entry(key: str, value: yaml.Node) -> yaml.Node:
    """The value of `key`, hidden as far as the key asks for it."""
    if key == "headers" and isinstance(value, yaml.MappingNode):
        return yaml.MappingNode(value.tag, [(_plain(name), _header(one)) for name, one in value.value], flow_style=value.flow_style)
    if key in SECRET_SECTIONS:
        if not isinstance(value, yaml.MappingNode):
            return _secret()
        shown = SECRET_SECTIONS[key]
        pairs = [(_plain(name), _plain(one) if name.value in shown else _merged(key, name, one)) for name, one in value.value]
        return yaml.MappingNode(value.tag, pairs, flow_style=value.flow_style)
    return _secret() if is_secret_key(key) and not isinstance(value, yaml.MappingNode) else _hidden(value)


def _merged(section: str, name: yaml.Node, value: yaml.Node) -> yaml.Node:
    return _entry(section, value) if name.value == "<<" else _secret()


def _header(value: yaml.Node) -> yaml.Node:
    """Values of one header are hidden, the names of files that hold them are not."""
    if not isinstance(value, yaml.MappingNode):
        return _secret()
    pairs = [(_plain(name), _hidden(one) if name.value == "files" else _secret()) for name, one in value.value]
    return yaml.MappingNode(value.tag, pairs, flow_style=value.flow_style)


def _plain(node: yaml.Node) -> yaml.Node:
    """A copy of a scalar; URLs lose what may be secret in them."""
    if not isinstance(node, yaml.ScalarNode):
        return _secret()
    text = node.value
    if "://" in text and ("@" in text or "?" in text):
        text = shown_url(text) + ("?" + HIDDEN if _has_query(text) else "")
    return yaml.ScalarNode(node.tag, text or ("null" if node.tag == type_null else ""), style=node.style)


def _has_query(text: str) -> bool:
    try:
        return bool(urlsplit(text).query)
    except ValueError:
        return False
