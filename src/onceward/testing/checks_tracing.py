"""The check of finding the records of a chain, for stores that have this capability."""

from onceward.core.origin import PARENT, ROOT, provenance_in, read_origin
from onceward.stores.capabilities import TRACE
from onceward.testing.bench import Bench, check, expect

_ROOTS = ("shop:1", "shop:12", "shop", 'a"b', "a'b", "a\\", "é", 'x","parent":"y')


@check
def trace_finds_a_chain(bench: Bench) -> None:
    """A store that can find the records of a chain finds all whose origin has that root, each once, in pages of any size."""
    trace = TRACE.of(bench.store)
    if trace is None:
        return
    for number, root in enumerate(_ROOTS):
        for child in range(number + 1):
            headers = {ROOT: root, PARENT: f"{root} {child}"}
            bench.claimed(f"key {number} {child}", "a", origin=provenance_in(headers.get).origin)
        bench.claimed(root, "a")
    for number, root in enumerate(_ROOTS):
        for limit in (100, 2):
            found: list[str] = []
            after: str | None = None
            for _ in range(200):
                page = bench.do(trace(root, after, limit, True))
                expect(page is not None, "a chain is found, at least by reading the whole ledger")
                assert page is not None
                for record in page.records:
                    came = read_origin(record.origin)
                    found += [record.key] if came is not None and came.root == root else []
                    expect(bench.load(record.key) == record, "a record found is as it is in the ledger")
                after = page.next
                if after is None:
                    break
            wanted = [f"key {number} {child}" for child in range(number + 1)]
            expect(sorted(found) == wanted, f"trace returns the records of {root!r}, each once, in pages of {limit}")
