"""A few shapes of SVG. Each picture has its own ground, so it is readable on a light and on a dark page."""

from html import escape

STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1c2430 }
.small { font-size: 13px; fill: #48556a } .head { font-weight: 600 } .mid { text-anchor: middle }
.on { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
.ground { fill: #ffffff; stroke: #d5dbe5 } .box { fill: #eef2f8; stroke: #5b6b84 }
.line { fill: none; stroke: #5b6b84; stroke-width: 1.4 } .dash { stroke-dasharray: 5 4 } .tip { fill: #5b6b84 }
.good { fill: #d9f0dd; stroke: #3f8a4f } .warn { fill: #fdeec8; stroke: #b0821a } .bad { fill: #f9dada; stroke: #b04a4a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6ebf3 } .small { fill: #b4c0d2 } .on { stroke: #1b212b }
  .ground { fill: #1b212b; stroke: #3a4557 } .box { fill: #2a3341; stroke: #8b9bb4 }
  .line { stroke: #9fb0c9 } .tip { fill: #9fb0c9 }
  .good { fill: #1f4a2a; stroke: #63b577 } .warn { fill: #55431a; stroke: #d6aa45 } .bad { fill: #552626; stroke: #d77b7b }
}
"""

HEAD = '<marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
Point = tuple[float, float]


def text(at: Point, words: str, kind: str = "") -> str:
    """Return a line of text; ``kind`` are its classes."""
    return f'<text x="{at[0]:g}" y="{at[1]:g}" class="{kind}">{escape(words)}</text>'


def lines(at: Point, rows: list[str], kind: str = "small mid", step: float = 16) -> str:
    """Return several lines of text, one below the other."""
    return "\n".join(text((at[0], at[1] + step * number), row, kind) for number, row in enumerate(rows))


def box(at: Point, size: Point, kind: str = "box") -> str:
    """Return a box with round corners; ``at`` is its upper left corner."""
    return f'<rect x="{at[0]:g}" y="{at[1]:g}" width="{size[0]:g}" height="{size[1]:g}" rx="7" class="{kind}"/>'


def path(steps: str, kind: str = "line", *, tip: bool = True) -> str:
    """Return a line along an SVG path, with an arrow's tip at its end."""
    return f'<path d="{steps}" class="{kind}"{" marker-end=" + chr(34) + "url(#tip)" + chr(34) if tip else ""}/>'


def picture(size: Point, title: str, parts: list[str]) -> str:
    """Return the whole file. ``title`` is read aloud to people who do not see it."""
    width, height = size
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-labelledby="t">'
    tip = f'<defs>{HEAD}<path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
    ground = box((0.5, 0.5), (width - 1, height - 1), "ground")
    return "\n".join(
        (opened, f'<title id="t">{escape(title)}</title>', f"<style>{STYLE}</style>", tip, ground, *parts, "</svg>\n")
    )


def wrapped(words: str, width: int) -> list[str]:
    """Return ``words`` in lines of at most ``width`` characters."""
    rows = [""]
    for word in words.split():
        if rows[-1] and len(rows[-1]) + 1 + len(word) > width:
            rows.append(word)
        else:
            rows[-1] = f"{rows[-1]} {word}".strip()
    return rows
