"""Inserts and swaps as functions of the ledger's database. An insert writes what is absent, or takes what is free.

A session plans a function's statements once. As one statement, planned each time, one key's insert or swap costs the server
twice or three times as much, and an insert half as much again with the decision table in it. The functions are printed from
the same tables and expressions as the statements. Their names have a digest of their text, so that each version of onceward
calls its own, also during a rolling deploy. Where they cannot be made, one key's insert takes nothing.
"""

from hashlib import sha256
from typing import Final

from onceward.core.record import IN_PROGRESS
from onceward.stores.postgres.statements import CHANNEL, POLICY, SEEN, WRITE, Parameter, Statements, waited
from onceward.stores.sql import rules
from onceward.stores.sql.columns import COLUMNS, FIELDS, VERSION

_GIVEN: Final = {one.name: f"p_{one.name}" for one in WRITE + POLICY}
_TIMES: Final = frozenset({"lease_until", "created_at", "expires_at", "updated_at", "due_at"})
_TYPES: Final = {one.name: one.type for one in WRITE} | dict.fromkeys(_TIMES, "timestamptz")
VERBS: Final = ("take", "takes", "swap", "swaps")  # of one key, and of many
_STATUS: Final = f"${2 + [one.name for one in WRITE].index('status')}"
# Who waits has locked the key, so that NOTIFY, which makes commits wait for each other, is for nobody else (listening.py).
_TELLS: Final = (
    f" IF {_STATUS} <> '{IN_PROGRESS}' AND NOT pg_try_advisory_xact_lock({waited('$2')}) "
    f"THEN PERFORM pg_notify('{CHANNEL}', {waited('$2')}::text); END IF;"
)
# Of many keys the locks are not kept: the server has room for a few thousand.
_TELL_EACH: Final = (
    f" PERFORM pg_notify('{CHANNEL}', h::text) FROM (SELECT {waited('k')} AS h FROM unnest($2, {_STATUS}) AS u(k, s) "
    f"WHERE s <> '{IN_PROGRESS}' OFFSET 0) ended WHERE NOT (pg_try_advisory_lock(h) AND pg_advisory_unlock(h));"
)
TELLING: Final = (
    "pg_notify(text, text)",
    "pg_try_advisory_xact_lock(bigint)",
    "pg_try_advisory_lock(bigint)",
    "pg_advisory_unlock(bigint)",
)  # what a role must be allowed to call, as each is by default
_TRIES: Final = 5  # of a key that others change meanwhile


def functions(table: str, meta: str, *names: str) -> tuple[str, ...]:
    """Return the statements that make the functions of these names (:data:`VERBS`), on tables that are named with their schema."""
    statements = Statements(table, meta, *names)
    take, takes, swap, swaps = names
    return (
        _one(take, table, statements),
        _of(takes, statements.insert_many, WRITE + POLICY, "[]"),
        _of(swap, statements.swap, WRITE + SEEN, told=_TELLS),
        _of(swaps, statements.swap_many, WRITE + SEEN, "[]", _TELL_EACH),
    )


def _of(name: str, statement: str, parameters: tuple[Parameter, ...], many: str = "", told: str = "") -> str:
    """Return the function that is a statement itself, with the parameters' numbers, and then tells waiters."""
    types = ", ".join(f"{one.type}{many}" for one in parameters)
    return f"{_head(name, f'text, {types}')} BEGIN RETURN QUERY {statement};{told} END $claim$"


def _head(name: str, parameters: str) -> str:
    columns = ", ".join(f"o_{name} {_TYPES[name]}" for name in FIELDS)
    return f"""CREATE OR REPLACE FUNCTION {name}({parameters})
RETURNS TABLE (won boolean, o_now timestamptz, {columns})
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $claim$"""


def _one(name: str, table: str, statements: Statements) -> str:
    """Return the function of one key's insert.

    It returns what an insert's statement does; after a record that was taken, a row of that record, with NULL for ``won``.
    Tables grow while a session keeps its plan, so that is always one by index.
    """
    parameters = ", ".join(f"p_{one.name} {one.type}" for one in WRITE + POLICY)
    of_t, of_held = (", ".join(f"{alias}.{name}" for name in FIELDS) for alias in ("t", "held"))
    made = statements.record(_GIVEN)
    taken = statements.taken(made)
    changes = ", ".join(f"{field} = {taken[field]}" for field in FIELDS[1:])
    same = " AND ".join(f"t.{name} = held.{name}" for name in VERSION)
    return f"""{_head(name, f"p_patience text, {parameters}")}
DECLARE
    c record;
    held record;
BEGIN
    FOR tries IN 1..{_TRIES} LOOP
        SELECT clock_timestamp() AS now,
            set_config('lock_timeout', coalesce(p_patience, current_setting('lock_timeout')), true) INTO c;
        SELECT {of_t}, {statements.verdict(_GIVEN)} AS verdict INTO held FROM {table} t WHERE t.key = p_key;
        IF held.key IS NULL THEN
            RETURN QUERY INSERT INTO {table} AS t ({COLUMNS}) VALUES ({", ".join(made.values())})
                ON CONFLICT (key) DO NOTHING RETURNING true, clock_timestamp(), {of_t};
        ELSIF {rules.is_free("held.verdict")} THEN
            RETURN QUERY UPDATE {table} t SET {changes} WHERE t.key = p_key AND {same}
                RETURNING true, clock_timestamp(), {of_t};
            IF FOUND THEN
                RETURN QUERY SELECT NULL::boolean, c.now, {of_held};
                RETURN;
            END IF;
        ELSE
            RETURN QUERY SELECT false, c.now, {of_held};
        END IF;
        EXIT WHEN FOUND;
    END LOOP;
END $claim$"""


DIGEST: Final = sha256("".join(functions("t", "m", *VERBS)).encode()).hexdigest()[:6]
