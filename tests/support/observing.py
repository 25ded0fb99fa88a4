"""What happens, for tests: the events of a Once, and the outcomes of batches that a face makes."""

from onceward import Once
from onceward.batch.report import Report
from onceward.observe import Event


def told_of(once, told):
    """Return a Once on the same ledger that adds the kind and the route of each event about a key to ``told``."""

    def observe(event):
        if isinstance(event, Event):
            told.append((event.kind, event.route))

    return Once(once.store, name="told", observe=[observe])


def note_outcomes(tell):
    """Have ``tell`` called with each outcome of any batch in this process, from now on and until the next call."""
    Noted.tell = staticmethod(tell)


class Noted:
    tell = staticmethod(lambda outcome: None)


def _noting(report):
    def reported(self, item, *told, **more):
        report(self, item, *told, **more)
        Noted.tell(item.outcome)

    return reported


Report.report = _noting(Report.report)
