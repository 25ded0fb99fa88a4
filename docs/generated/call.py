"""How one call goes through the house: the functions that it enters, in order, each with its line."""

import ast
from functools import cache
from pathlib import Path

import onceward
from generated.markdown import code, table

SOURCE = Path(onceward.__file__).parent
FIRST = (  # of a key that is new, on SQLite
    ("claim/decorated.py", "DecoratedHandler.wrapped.<locals>.calling.<locals>.call", "`charge(order)` comes in"),
    ("keys/ledger_keys.py", "ledger_key", "writes the key as the ledger has it"),
    ("claim/guard.py", "Guard.call", "runs the handler between two drives: one that claims, one that completes"),
    ("claim/guard.py", "Guard.enter", "starts the steps of the claim, and counts the lease from before the request"),
    ("core/drivers.py", "drive", "sends the requests of a generator, and its replies back; `drive_async` awaits them"),
    ("core/steps.py", "claim", "the steps of a claim: a generator without I/O"),
    ("stores/sqlite/store.py", "SqliteStore.insert", "a verb of the store: a generator of its own requests"),
    ("stores/sqlite/exchange.py", "SqliteExchange.exchange", "the store's only I/O; DynamoDB's goes through `wire/`"),
    ("claim/called.py", "run_under", "runs your function under its claim, outside of every generator"),
    ("claim/held.py", "HeldClaim.leave", "says how the claim ends: with a result, a failure or an interrupt"),
    ("results/outcomes.py", "completion", "encodes the result"),
    ("core/steps.py", "end", "the steps of an end"),
    (
        "stores/sqlite/store.py",
        "SqliteStore.swap",
        "writes, if the record is still the version that this claim has written",
    ),
)
DUPLICATE = (  # the same up to the store's answer, which has the record
    ("core/protocol.py", "decide", "makes a verdict of record, time and policy: the only place that reads a status"),
    ("claim/guard.py", "Guard.answer", "does what the verdict says"),
    ("results/codec.py", "Codec.decode", "reads the recorded result as the return annotation says"),
)


def pages() -> dict[str, str]:
    """Return a page for each file of the call, by its address, with numbered lines."""
    files = sorted({file for file, *_ in FIRST + DUPLICATE})
    texts = {file: (SOURCE / file).read_text(encoding="utf-8") for file in files}
    return {f"source/{file}.md": f'# {file}\n\n`````python linenums="1"\n{text}`````\n' for file, text in texts.items()}


def part() -> str:
    """Return the tables."""
    again = "A duplicate goes the same way until the store answers. Then:\n\n"
    return f"{_table(FIRST)}\n{again}{_table(DUPLICATE)}"


def _table(frames: tuple[tuple[str, str, str], ...]) -> str:
    rows = []
    for number, (file, name, text) in enumerate(frames, 1):
        line = lines(file)[name]
        # As HTML, because mkdocs does not know the anchors of lines.
        link = f'<a href="../source/{file}.html#__codelineno-0-{line}">{code(f"{file}:{line}")}</a>'
        rows.append((str(number), link, text))
    return table(("", "where", "what it does"), rows)


@cache
def lines(file: str) -> dict[str, int]:
    """Return the line of each function of a file, by its qualified name."""
    found: dict[str, int] = {}

    def look(node: ast.AST, before: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = before
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(before + child.name, child.lineno)
                inner = f"{before}{child.name}.{'' if isinstance(child, ast.ClassDef) else '<locals>.'}"
            look(child, inner)

    look(ast.parse((SOURCE / file).read_text(encoding="utf-8")), "")
    return found
