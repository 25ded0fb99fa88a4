"""The engine of ``onceward pipe``: each line of NDJSON is handled exactly once. It needs no terminal and no command line.

    from onceward import Once
    from onceward.pipe import Function, Pipe

    once = Once("sqlite:///orders.db")
    end = Pipe(once, Function("shop:charge"), key="order.id").run(["orders.ndjson"])
    print(end.why, end.counts)

Pass a :class:`Reporter` to be told of each line. Pass a :class:`Command` to run a program.
"""

from onceward.pipe.commands import Command
from onceward.pipe.engine import NameTaken, Pipe
from onceward.pipe.functions import Function
from onceward.pipe.outcomes import End, LineJob, Reporter

__all__ = ["Command", "End", "Function", "LineJob", "NameTaken", "Pipe", "Reporter"]
