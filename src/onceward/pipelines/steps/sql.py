"""The step ``sql``."""

from typing import Any, Final

import msgspec

from onceward.errors import StepMade
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage
from onceward.pipelines.databases import Database, Statement, opened
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import Expression, Text

_KEY: Final = "onceward_key"
_FENCE: Final = "onceward_fence"


class SqlStep(EffectSettings):
    """Run one statement of SQL.

    In the ledger's own database, the statement commits together with its record, so it takes effect exactly once. In
    another database, it is committed before it is recorded. After a crash in between, the statement runs again with the
    same `:onceward_key`. The result has `rows`, a list of objects, and `count`.

    Attributes:
        statement: The statement. A parameter is a name with a colon, as in :amount. :onceward_key is the step's derived key,
            and :onceward_fence the claim's fence.
        parameters: The values by name. A list or an object becomes JSON text.
        database: Another database: sqlite:///file.db, postgresql://user@host/db or mysql://user@host/db. By default the
            ledger's.
    """

    statement: Text
    parameters: dict[str, Expression] = {}
    database: str | None = None

    @property
    def title(self) -> str:
        return f"sql {' '.join(self.statement.split())}"[:100]

    def build(self, kit: "Kit") -> EffectAction:
        database = self._opened(kit)
        statement = None if database is None else self._checked(kit, database)
        is_own = self.database is None or (database is not None and database.url == kit.built.ledger)
        kit.records = not is_own
        if kit.within and is_own:
            kit.mistake(
                "", f"a statement in the ledger's database cannot be within {kit.within!r}, which is recorded alone"
            )

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert database is not None
            assert statement is not None
            values = {name: find(message) for name, find in self.parameters.items()}
            values |= {_KEY: call.key(), _FENCE: call.claim.fence}
            if is_own:
                return await call.thread(_transact, database, statement, values, call)
            return await call.thread(_run, database, statement, values)

        return make

    def _opened(self, kit: "Kit") -> Database | None:
        url = self.database or kit.built.ledger
        if url is None:
            kit.mistake("", "database: is missing, because this ledger was not opened by a URL")
            return None
        scheme = url.partition(":")[0].lower()
        if self.database is None and scheme not in {"sqlite", "postgresql", "mysql", "mariadb"}:
            kit.mistake("", f"database: is missing, because a ledger of {scheme} runs no SQL")
            return None
        return opened(kit, "database" if self.database else "", url)

    def _checked(self, kit: "Kit", database: Database) -> Statement | None:
        with kit.noting("statement"):
            statement = Statement(self.statement, database.dialect)
            for name in statement.names:
                if name not in self.parameters and name not in {_KEY, _FENCE}:
                    kit.mistake("statement", f"no value fills :{name}. Give it under parameters:")
            for name in self.parameters:
                if name in {_KEY, _FENCE}:
                    kit.mistake(("parameters", name), f"{name}: onceward itself fills it; leave it out")
            return statement
        return None


def _transact(database: Database, statement: Statement, values: dict[str, object], call: "PipelineCall") -> Any:
    """Run a statement in one transaction with the record of its step."""
    with database.connection() as connection, database.one_by_one_at_first(connection):
        try:
            with call.claim.step_transaction(call.step, connection) as transaction:
                transaction.result = msgspec.to_builtins(database.execute(connection, statement, values))
        except StepMade as made:
            return made.result
    return transaction.result


def _run(database: Database, statement: Statement, values: dict[str, object]) -> Any:
    with database.connection() as connection:
        return database.execute(connection, statement, values)
