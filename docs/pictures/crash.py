"""A terminal in which a worker dies. Its text is that of the first tutorial, whose commands a test runs as they are printed."""

import re
from html import escape
from pathlib import Path

from svg import box

PAGE = Path(__file__).parents[1] / "tutorials" / "first-function.md"
SECTIONS = (  # a comment above the commands of a section of the page
    ("Kill it at the worst moment", "# the worker dies after the payment, and before its record"),
    ("Give the bank the key", "# the same, but the handler gives the bank claim.key('pay')"),
)
STYLE = """
text { font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d7e0ea; white-space: pre }
.ground { fill: #161b22; stroke: #3a4557 } .said { fill: #9fb0c9 } .note { fill: #7fc7a3 } .bad { fill: #ff9d9d }
@media (prefers-reduced-motion: no-preference) { text { animation: show 0.2s linear both } }
@keyframes show { from { opacity: 0 } to { opacity: 1 } }
"""


def story() -> list[str]:
    """Return the lines of the terminal: comments, commands after a dollar, and what they print."""
    page = PAGE.read_text(encoding="utf-8")
    lines = []
    for title, comment in SECTIONS:
        section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
        lines.append(comment)
        for block in re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            for command in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
                if "onceward show" not in command:
                    lines += command.splitlines()
    return lines


def draw() -> str:
    """Return the picture: the lines come one after the other, once. Who wants no motion sees them all."""
    parts, seconds = [], 0.4
    lines = story()
    for number, line in enumerate(lines):
        seconds += 1.4 if line.startswith("$") else 0.9
        kind = (
            "note" if line.startswith("#") else "" if line.startswith("$") else "bad" if line == "it died" else "said"
        )
        at = f'x="20" y="{34 + 24 * number}" style="animation-delay: {seconds:.1f}s"'
        parts.append(f'<text class="{kind}" {at}>{escape(line, quote=False)}</text>')
    size = 820, 24 * len(lines) + 26
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-labelledby="t">'
    title = f'<title id="t">A terminal: {escape(" / ".join(lines), quote=False)}</title>'
    ground = box((0.5, 0.5), (size[0] - 1, size[1] - 1), "ground")
    return "\n".join((opened, title, f"<style>{STYLE}</style>", ground, *parts, "</svg>\n"))
