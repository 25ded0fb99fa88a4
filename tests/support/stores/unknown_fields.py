"""A write changes only the fields of a record that it names. A field of a newer version stays."""

from onceward.testing.bench import expect, next_of


def check_unknown_fields_stay(bench, add):
    """Check it. ``add`` adds a field to a key's record, and returns a function that says whether it is still there."""
    held = [bench.claimed(key) for key in ("a", "b")]
    stay = [add(bench.store, record.key) for record in held]
    swapped = [bench.swapped(record, result="1") for record in held]
    expect(all(stays() for stays in stay), "a swap keeps the fields that it does not name")
    bench.do(bench.store.swap_many([(next_of(record), record) for record in swapped]))
    expect(all(stays() for stays in stay), "a swap in a batch keeps the fields that it does not name")
    bench.close()
