"""Write docs/reference/service.json, the OpenAPI document of the service: ``python docs/draw_openapi.py``."""

import json
from pathlib import Path

from onceward.service.openapi import document

PAGE = Path(__file__).with_name("reference") / "service.json"


def page() -> str:
    """Return the document as text."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
