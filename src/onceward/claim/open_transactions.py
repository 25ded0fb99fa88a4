"""Warns of a key that completed while a transaction of its caller was open: the handler's writes in it can still be undone.

Django tells which of its transactions are open. SQLAlchemy does not, so its events note here what may write, by thread and task.
Reading begins a transaction in SQLAlchemy, as after a commit, so only what has written counts, or will at its flush.
"""

import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from onceward.stores.contract import Store

_READS: Final = ("SELECT", "WITH", "SHOW", "SET", "PRAGMA", "EXPLAIN", "VALUES", "SAVEPOINT", "RELEASE", "ROLLBACK")
_WRITES: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE)\s", re.IGNORECASE)  # after WITH
_ENDS: Final = 7  # frames from a warning to the call of a guard


class _Writers(threading.local):
    """The sessions of SQLAlchemy that have begun a transaction in this thread, and the transactions of connections that have written."""

    def __init__(self) -> None:
        self._by_thread: WeakSet[Any] = WeakSet()
        self._by_task: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()

    def here(self) -> WeakSet[Any]:
        """Return those of the running task, or of the thread if no task runs in it."""
        asyncio: Any = sys.modules.get("asyncio")  # without it there is no task
        try:
            task = None if asyncio is None else asyncio.current_task()
        except RuntimeError:  # no loop
            task = None
        return self._by_thread if task is None else self._by_task.setdefault(task, WeakSet())


_WRITERS: Final = _Writers()
_watched: Final[set[str]] = set()  # the modules of SQLAlchemy whose events are noted
_WARNED: Final["WeakKeyDictionary[Store, set[str]]"] = WeakKeyDictionary()  # the namespaces, by ledger


def watch() -> None:
    """Note from now on where SQLAlchemy may write, if it is loaded."""
    for module, kind, hooks in (
        # Events of the dialect. Those of connections would slow down each statement by a third.
        ("engine", "Engine", dict.fromkeys(("do_execute", "do_executemany", "do_execute_no_params"), _executes)),
        ("orm", "Session", {"after_transaction_create": _begins}),
    ):
        loaded: Any = sys.modules.get(f"sqlalchemy.{module}")
        if module not in _watched and hasattr(loaded, kind):  # it may be halfway through its import
            _watched.add(module)
            for event, hook in hooks.items():
                sys.modules["sqlalchemy"].event.listen(getattr(loaded, kind), event, hook)


def _executes(_cursor: object, statement: str, *given: Any) -> None:
    context = given[-1]
    start = statement[:80].lstrip("( \n\t").upper()
    reads = start.startswith(_READS) and not (start.startswith("WITH") and _WRITES.search(statement))
    if reads and not (context.isinsert or context.isupdate or context.isdelete):
        return
    connection = context.root_connection
    driver = connection.connection.dbapi_connection  # which knows an isolation level of the whole engine
    if (
        connection.in_transaction()
        and connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT"
        and getattr(driver, "autocommit", None) is not True
    ):
        _WRITERS.here().add(connection.get_transaction())


def _begins(session: Any, _: object) -> None:
    _WRITERS.here().add(session)


def warn_of_open(store: "Store", key: str) -> None:
    """Warn, once for each namespace of a ledger, if a transaction is open in which the handler may have written."""
    watch()
    owner = next(_open(), None)
    if owner is None:
        return
    warned, name = _WARNED.setdefault(store, set()), key.partition(":")[0]
    if name in warned:
        return
    warned.add(name)
    warnings.warn(
        f"{key}: its key is COMPLETED, but {owner} around this call is open. If it does not commit, what the handler wrote in it is "
        "lost, and duplicates get this result. Commit before the call, or call it outside, or let the record join: "
        "once.transaction(key, connection). See docs/reference/transactions.md, 'A guarded call inside your transaction'",
        UserWarning,
        stacklevel=_ENDS,
    )


def _open() -> Iterator[str]:
    for alias in open_in_django():
        yield f"a transaction of Django's on the database {alias!r}"
    yield from filter(None, map(_unfinished, list(_WRITERS.here()) if _watched else ()))


def _unfinished(writer: Any) -> str:
    """Return what to call a writer whose writes are not committed; "" if there are none."""
    if hasattr(writer, "identity_map"):
        return "a Session of SQLAlchemy" if writer.new or writer.dirty or writer.deleted else ""
    return "a transaction of SQLAlchemy" if writer.is_active else ""


def open_in_django() -> Iterator[str]:
    """Yield the aliases of Django's databases with an open transaction in this thread, but for those that its TestCase opens."""
    conf: Any = sys.modules.get("django.conf")
    db: Any = sys.modules.get("django.db")
    if db is None or not conf.settings.configured:
        return
    for connection in db.connections.all(initialized_only=True):
        blocks = connection.atomic_blocks
        by_hand = not blocks and connection.connection is not None and not connection.autocommit
        if by_hand or any(not getattr(block, "_from_testcase", False) for block in blocks):
            yield connection.alias
