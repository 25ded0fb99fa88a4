"""Draw the pictures of docs/explanation: ``python docs/pictures/draw.py``; with ``--check`` only compare."""

import sys
from pathlib import Path

import crash
import guarantees
import house
import idea
import states
import takeover

PLACE = Path(__file__).parents[1] / "explanation" / "pictures"
PICTURES = {one.__name__: one.draw for one in (crash, guarantees, house, idea, states, takeover)}


def main() -> None:
    """Write each picture, or say which one is not what the code draws now."""
    old = []
    for name, draw in PICTURES.items():
        file, drawn = PLACE / f"{name}.svg", draw()
        if "--check" not in sys.argv[1:]:
            PLACE.mkdir(exist_ok=True)
            file.write_text(drawn, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != drawn:
            old.append(name)
    if old:
        sys.exit(f"out of date: {', '.join(old)}. Run python docs/pictures/draw.py")


if __name__ == "__main__":
    main()
