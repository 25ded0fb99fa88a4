"""The store contract as checks that you can run on your own store.

Each check is one sentence of ``stores/contract.py`` or ``core/register.py``. They run through ``exchange`` and
``exchange_async``::

    from onceward.testing.conformance import conform

    def make(clock):
        return MyStore(clock=clock)

    conform(make)                     # raises NotConforming with every sentence that does not hold

Or one by one, in pytest::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    @pytest.mark.parametrize("mode", MODES)
    def test_my_store(check, mode):
        check.run(Bench(make, again, mode=mode))

If your store uses a server's clock, ignore the argument of ``make`` and pass ``advance=time.sleep``; the checks then take
some seconds. ``make`` must return an empty ledger each time.
"""

from collections.abc import Callable, Sequence

from onceward.core.clock import Clock
from onceward.stores.contract import Store
from onceward.testing import checks_batches, checks_due, checks_ledger, checks_register, checks_time
from onceward.testing.bench import CHECKS, MODES, Bench, Check, Mode, NotConforming

__all__ = ["CHECKS", "MODES", "Bench", "Check", "Mode", "NotConforming", "conform"]
_ROOMS = (checks_batches, checks_due, checks_ledger, checks_register, checks_time)  # they fill CHECKS


def conform(
    make: Callable[[Clock], Store],
    again: Callable[[Store, Clock], Store] | None = None,
    *,
    modes: Sequence[Mode] = MODES,
    advance: Callable[[float], None] | None = None,
) -> None:
    """Run every check in every mode.

    Args:
        make: as for :class:`Bench`.
        again: as for :class:`Bench`.
        modes: "sync", "async" or both.
        advance: as for :class:`Bench`.

    Raises:
        NotConforming: its message lists every sentence that does not hold.
    """
    wrong: list[str] = []
    for mode in modes:
        for check in CHECKS:
            try:
                check.run(Bench(make, again, mode=mode, advance=advance))
            except Exception as error:  # a check that fails in any way is a finding
                wrong.append(f"{check.name} ({mode}): {error if isinstance(error, NotConforming) else repr(error)}")
    if wrong:
        raise NotConforming("\n".join(wrong))
