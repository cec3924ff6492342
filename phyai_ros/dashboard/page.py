"""The page as one HTML document: markup, style and scripts are separate files here and one on the wire."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

SCRIPTS = ("charts.js", "page.js")


def load_page() -> tuple[bytes, str]:
    """The document, and the Content-Security-Policy under which nothing but its own script and style may run."""
    folder = files(__package__)
    style, markup = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.html"))
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    document = markup.replace("/* STYLE */", style).replace("/* SCRIPT */", script)
    allowed = {"script-src": _digest(script), "style-src": _digest(style), "img-src": "'self'", "connect-src": "'self'"}
    policy = "; ".join(
        [*(f"{name} {value}" for name, value in allowed.items()), "base-uri 'none'", "form-action 'none'"]
    )
    return document.encode(), f"default-src 'none'; {policy}; frame-ancestors 'self'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
