"""Serves `GET /agentcache-live`: the live report in a browser, which asks for the server's API key itself.

The page holds nothing of any job. Its script fetches `/agentcache/report` with the key, which browsers cannot do.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from agentcache.front_end.server_options import LIVE_PATH
from agentcache.report.html import find_template

_FOLDER = Path(__file__).parent
page_router = APIRouter()


@page_router.get(LIVE_PATH, response_class=HTMLResponse)
async def get_page() -> Response:
    """Return the page, the same for everybody."""
    page, rules = _make_page()
    return HTMLResponse(page, headers={"Content-Security-Policy": rules, "Referrer-Policy": "no-referrer"})


@cache
def _make_page() -> tuple[str, str]:
    """Make the page, and the rules by which a browser runs its own script alone, which asks no other server."""
    script = (_FOLDER / "live_page.js").read_text(encoding="utf-8")
    page = find_template("live_page.html.jinja", _FOLDER).render(script=script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; script-src 'sha256-{digest}'; connect-src 'self'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, rules
