"""Planted defects, each a change to one line, and the tests that find it.

A defect is found when one of its tests fails. ``invariant`` is the number of the rule in the design that it breaks.
"""

import re
from typing import NamedTuple

_CHANGE = re.compile(r"(?:\[-(.+?)-\])?(?:\{\+(.+?)\+\})?", re.DOTALL)


class Defect(NamedTuple):
    """A change to one line, and who must see it."""

    name: str
    file: str  # under src/onceward/
    change: str  # as git's --word-diff shows it: [-what goes-]{+what comes+}; the text without it stands there once
    tests: str  # files or folders under tests/, or node ids, separated by spaces
    invariant: int | None = None

    @property
    def before(self) -> str:
        return _CHANGE.sub(r"\1", self.change)

    @property
    def after(self) -> str:
        return _CHANGE.sub(r"\2", self.change)


_PROTOCOL = "unit/core/test_protocol.py unit/core/test_protocol_ends.py unit/claim/test_guard.py"
_REGISTER = "conformance/test_conformance.py"
_STEPS = f"{_REGISTER} unit/claim/test_guard.py unit/core"
_CLAIM = "unit/claim unit/core"
_BATCH = "unit/batch"

DEFECTS = (
    # --- the decision table ---------------------------------------------------------------------------------------
    Defect(
        "a live lease is taken over",
        "core/protocol.py",
        "Rule(_is(IN_PROGRESS), (conditions.LEASE_LIVE,), Verdict.[-BUSY-]{+NEXT+})",
        _PROTOCOL,
        1,
    ),
    Defect(
        "a completed key runs again",
        "core/protocol.py",
        "Rule(_is(COMPLETED), (), Verdict.[-REPLAY-]{+NEXT+})",
        _PROTOCOL,
        3,
    ),
    Defect(
        "a claim does not know its own write",
        "core/protocol.py",
        "[-    Rule(_is(IN_PROGRESS), (conditions.MINE,), Verdict.WON),\n-]",
        f"{_PROTOCOL} {_REGISTER}",
        4,
    ),
    Defect(
        "an expired record is free while its lease lives",
        "core/protocol.py",
        "Rule(None, (conditions.EXPIRED,[- conditions.LEASE_OVER-]), Verdict.START)",
        "unit/core/test_protocol.py",
        1,
    ),
    Defect(
        "another input gets the recorded result",
        "core/protocol.py",
        "    Rule([-None, (conditions.DIFFERS,), Verdict.MISMATCH),\n    Rule(-]_is(COMPLETED)",
        _PROTOCOL,
    ),
    Defect(
        "one attempt more than max_attempts",
        "core/conditions.py",
        "k.held.attempts >[-=-] k.policy.max_attempts",
        _PROTOCOL,
    ),
    Defect(
        "a lapsed key runs again although it is to be parked",
        "core/conditions.py",
        'k.policy.on_lapse == "[-park-]{+parked+}"',
        _PROTOCOL,
    ),
    Defect(
        "a lease counts as live when it has just ended",
        "core/conditions.py",
        "lambda k: k.now <{+=+} k.held.lease_until",
        "unit/core/test_protocol.py",
    ),
    Defect(
        "a record that needs a newer version is taken",
        "core/protocol.py",
        "[-    Rule(None, (UNKNOWN_NEEDS,), Verdict.UNKNOWN),\n-]",
        "unit/core",
    ),
    Defect(
        "a failed handler gets one attempt more",
        "core/protocol.py",
        "record.attempts >[-=-] policy.max_attempts)",
        _PROTOCOL,
    ),
    Defect(
        "what has not begun counts as an attempt",
        "core/protocol.py",
        "    attempts = record.attempts[- - 1-]\n",
        _CLAIM,
    ),
    Defect(
        "a zombie ends its successor's claim",
        "core/protocol.py",
        "if held is None or [-held.owner != owner or -]unknown_needs(held):\n        return Ending.LOST",
        _CLAIM,
        2,
    ),
    Defect(
        "an operator completes a key that is completed",
        "core/protocol.py",
        "if record.status not in [-{IN_PROGRESS, RELEASED, PARKED}-]{+STATUSES+}:",
        "integration/test_settling.py unit/core",
        3,
    ),
    # --- versions, leases, fences ---------------------------------------------------------------------------------
    Defect("a takeover keeps the fence", "core/writes.py", "claim._replace(fence=held.fence[- + 1-],", _STEPS),
    Defect("a retry forgets how many there were", "core/writes.py", "attempts=[-held.attempts + -]1,", _STEPS, 9),
    Defect(
        "an owner believes in its lease beyond its end",
        "core/belief.py",
        "return sent + min(remaining, lease) [---]{+++} margin(store, policy)",
        _CLAIM,
        6,
    ),
    Defect(
        "an owner believes what a wrong clock says of its lease",
        "core/belief.py",
        "return sent + [-min(remaining, lease)-]{+remaining+} - margin(store, policy)",
        "unit/core/test_protocol.py",
        6,
    ),
    Defect(
        "a lease is counted from the reply",
        "core/steps.py",
        "            until = belief(store, policy, [-sent-]{+clock()+}, reply, held, lease)\n            in_time",
        _CLAIM,
        6,
    ),
    Defect(
        "a renewal shortens a lease",
        "core/record.py",
        "            [-until = max(until, floor)-]{+pass+}",
        f"{_REGISTER} unit/core",
    ),
    Defect(
        "a fence of a deleted record comes again",
        "stores/sqlite/requests.py",
        "WHERE ?{names.index('fence') + 1} > [-coalesce((SELECT fence FROM {HIGH}), 0)-]{+0+}\"",
        "integration/sqlite/test_sqlite_files.py",
    ),
    Defect(
        "a lost claim says that it is held",
        "claim/lease.py",
        "return self.settled is None and [-(self._lost or (not self.paused and self.clock() >= self._until))-]{+self._lost+}",
        _CLAIM,
        6,
    ),
    Defect(
        "a forked child ends what its parent claimed",
        "claim/lease.py",
        "return [-self._process != worker.generation-]{+False+}",
        "processes/test_forks.py unit/claim",
        1,
    ),
    # --- claiming and ending --------------------------------------------------------------------------------------
    Defect(
        "a store that is away counts as a claim",
        "core/steps.py",
        "    if isinstance(error, [-KeyLocked):\n        return locked(first)-]{+StoreError):\n        return Reply(True, first.at(0.0), 0.0)+}",
        _STEPS,
        8,
    ),
    Defect(
        "a completion whose reply was lost is lost",
        "core/steps.py",
        "        if ending is Ending.DONE:\n            return [-Settled(_with_result(held, outcome) if alone else -]{+Lost(+}held)",
        _STEPS,
        4,
    ),
    Defect(
        "a heartbeat between two tries loses the claim",
        "core/steps.py",
        "            return Settled(_with_result(held, outcome) if alone else held)\n        [-mine = held-]{+return Lost(held)+}",
        _STEPS,
        4,
    ),
    Defect(
        "a heartbeat of a key that has gone on counts",
        "core/steps.py",
        "            elif held is not None and [-is_mine(held, before.owner):\n                again[i] = held-]{+held.owner:\n                again[i] = held._replace(owner=before.owner)+}",
        "unit/core/test_ending_many.py",
        2,
    ),
    Defect(
        "a failed write is not tried again",
        "core/retries.py",
        'if [-not getattr(error, "transient", False) or clock() + pause >= until()-]{+error is not None+}:',
        _STEPS,
        7,
    ),
    Defect(
        "a result that is too large is kept",
        "results/outcomes.py",
        "    if size[- <= policy.max_result-]:\n",
        "unit/claim unit/results",
        7,
    ),
    Defect(
        "a result that cannot be encoded fails the call",
        "results/outcomes.py",
        "[-firmly(_sealing(codec.encode, policy), result)-]{+_sealing(codec.encode, policy)(result)+}",
        "unit/claim unit/results",
        7,
    ),
    Defect(
        "an exception is masked by the store's",
        "claim/ends.py",
        '            [-error.add_note(f"onceward: and then {trouble}")-]{+raise+}\n        finally:',
        _CLAIM,
        9,
    ),
    Defect(
        "a handler that was interrupted gives its key back",
        "claim/ends.py",
        "return [-outcome.status == RELEASED and self.chain is not None and self.chain.is_cut_short-]{+False+}",
        "unit/claim",
        9,
    ),
    Defect(
        "a handler whose completion failed gives its key back",
        "claim/ends.py",
        "return [-self.in_vain is not None or (self.chain is not None and self.chain.notes.failed is not None)-]{+False+}",
        "unit/claim",
        7,
    ),
    Defect(
        "a store that refuses the result gets no second try",
        "claim/ends.py",
        "if [-outcome.result is not None and (lasting or self.clock() < self.limit(2, succeeded=True))-]{+False+}:",
        "unit/core/test_settling_limits.py",
        7,
    ),
    Defect(
        "a guarded call of the same key inside itself waits for itself",
        "claim/running.py",
        "[-            if outer.record.key == key:\n                raise Reentrant(key)\n-]",
        "unit/claim unit/test_once.py",
    ),
    Defect(
        "an interrupt while claiming leaves the key claimed",
        "claim/guard.py",
        "                    [-settle(partial(self._abandon, self.store, bid), self.store)-]{+pass+}",
        "unit/claim processes/test_interrupts.py",
    ),
    Defect(
        "heartbeats stop after the first",
        "claim/heartbeat.py",
        "            claim.[-renewed(outcome)-]{+settled or setattr(claim, 'due', float('inf'))+}\n\n\ndef _failed",
        "unit/claim/test_heartbeat.py",
        7,
    ),
    Defect(
        "one hanging store stops all heartbeats",
        "claim/heartbeat.py",
        '            [-if not started("onceward-renewal", self._renew, store, claims):\n                -]self._renew(store, claims)',
        "unit/claim/test_heartbeat.py",
    ),
    # --- keys and results -----------------------------------------------------------------------------------------
    Defect(
        "a key that is missing from the input is None's",
        "keys/reading.py",
        "        if value is [-None-]{+KeyMissing+}:\n            raise KeyMissing(",
        "unit/keys",
        10,
    ),
    Defect(
        "a part of a key may be missing",
        "keys/paths.py",
        "if [-self._strict and isinstance(parts, list) and None in parts-]{+False+}:",
        "unit/keys",
        10,
    ),
    Defect("the int 1 and the text 1 are one key", "keys/ledger_keys.py", "[-(?!({_LIKE_ANOTHER})\\Z)-]", "unit/keys"),
    Defect(
        "a tuple's parts can run together",
        "keys/ledger_keys.py",
        "def _short(form: str, longest: int) -> str:\n    return form[- if len(form) <= longest-]{+[:longest] if len(form) > 0+} else",
        "unit/keys",
    ),
    Defect(
        "a value that does not come back equal is recorded",
        "results/codec.py",
        '    if [-not unchanged-]{+unchanged is None+}:\n        raise NotReplayable(f"a {type(value).__name__} does not come back equal from what can',
        "unit/results",
        3,
    ),
    # --- batches --------------------------------------------------------------------------------------------------
    Defect(
        "a batch believes in a lease from its reply on",
        "core/many.py",
        "until = belief(store, bid.policy, [-sent-]{+clock()+}, reply, held, lease=bid.policy.lease)",
        "unit/core/test_ending_many.py",
        6,
    ),
    Defect(
        "one throttled key fails its batch",
        "core/many.py",
        "        if isinstance(reply, StoreError):\n            [-outcomes[number] = reply\n            continue-]{+raise reply+}\n        held = reply.record",
        f"{_BATCH} unit/core integration/dynamodb/test_batch_dynamodb.py",
    ),
    Defect(
        "one poisonous end keeps a batch unrecorded",
        "core/many.py",
        "            raise\n        [-return [None] * len(ends)  # the store refuses one; ending each alone finds out which-]{+raise+}",
        f"{_BATCH} unit/core",
    ),
    Defect(
        "an interrupted batch does not give its keys back",
        "batch/runner.py",
        "[-        yield from give_back_together(self._guard, claims, self._time.limit)\n-]",
        _BATCH,
    ),
    Defect(
        "a group goes on after its first failure",
        "batch/runner.py",
        "[- and i.group not in self.order.broken-]]",
        _BATCH,
    ),
    # --- stores ---------------------------------------------------------------------------------------------------
    Defect(
        "SQLite writes over a newer version",
        "stores/sqlite/requests.py",
        'WHERE key = ? AND [-owner = ? AND fence = ? AND beat = ?-]{+(owner = ? OR fence = ? OR beat = ?)+}"\n\n\n_FIRST',
        _REGISTER,
        2,
    ),
    Defect(
        "SQLite purges what has not expired", "stores/sqlite/requests.py", "WHERE expires_at [-<-]{+>+}= ? ", _REGISTER
    ),
    Defect(
        "SQLite's time is the worker's",
        "stores/sqlite/clock.py",
        "return [-self._start + boottime() if self.boot else -]time.time()",
        "processes/test_sqlite_clock.py",
        5,
    ),
    Defect(
        "PostgreSQL's insert writes over a record",
        "stores/postgres/statements.py",
        'f"ON CONFLICT (key) DO [-NOTHING-]{+UPDATE SET owner = excluded.owner+} RETURNING {time}, {COLUMNS})"\n            + self.answer(f"{result} UNION ALL SELECT false, c.now, held.* FROM c, held")\n        )\n        self.insert_many',
        "conformance/test_conformance_postgres.py integration/postgres/test_postgres_locks.py",
        1,
    ),
    Defect(
        "PostgreSQL compares no beat",
        "stores/postgres/statements.py",
        'same = " AND ".join(f"t.{name} = {ONE[\'seen_\' + name]}" for name in VERSION{+[:2]+})',
        "conformance/test_conformance_postgres.py",
        2,
    ),
    Defect(
        "PostgreSQL shortens a lease",
        "stores/postgres/statements.py",
        "ends = f\"[-greatest({now} + {values['lease']} * interval '1 second', to_timestamp({values['until']}))-]{+({now} + {values['lease']} * interval '1 second')+}\"",
        "conformance/test_conformance_postgres.py",
    ),
    Defect(
        "PostgreSQL tells no waiter",
        "stores/postgres/statements.py",
        'WHEN [-pg_try_advisory_xact_lock({number})-]{+true+} THEN NULL "',
        "integration/postgres/test_postgres_listening.py",
    ),
    Defect(
        "Redis writes over a newer version",
        "stores/redis/scripts.py",
        "if not [-(is('owner', a[16]) and is('fence', a[17]) and is('beat', a[18]))-]{+is('owner', a[16])+} then return",
        "conformance/test_conformance_redis.py",
        2,
    ),
    Defect(
        "Redis' fences do not grow",
        "stores/redis/scripts.py",
        "math.max(least, [-before + 1, tonumber(t[1]) * 1000000 + tonumber(t[2])-]{+tonumber(t[1])+})",
        "conformance/test_conformance_redis.py",
    ),
    Defect(
        "Redis wakes nobody",
        "stores/redis/records.py",
        "[-was == IN_PROGRESS != status-]{+False+}",
        "integration/redis/test_redis_waiters.py",
    ),
    Defect(
        "Redis counts a write that no replica has",
        "stores/redis/requests.py",
        "if on_disk[- and reached >= self.replicas-]:",
        "integration/redis/test_redis_promises.py integration/redis/test_redis_connections.py",
    ),
    Defect(
        "DynamoDB writes over a record that is there",
        "stores/dynamodb/requests.py",
        '"ConditionExpression": "[-attribute_not_exists-]{+attribute_exists(#k) OR attribute_not_exists+}(#k)",',
        "integration/dynamodb/test_dynamodb.py",
        1,
    ),
    Defect(
        "DynamoDB's time is the worker's",
        "stores/dynamodb/table.py",
        "(True, record, [-stamp if answer.date is None else max(stamp, answer.date)-]{+__import__('time').time()+})",
        "integration/dynamodb/test_dynamodb_clock.py integration/dynamodb/test_dynamodb.py",
        5,
    ),
    Defect(
        "a batch in the line mixes up its replies",
        "stores/lanes/line.py",
        "                reply = [-answer.replies.get(ticket.request.key)-]{+next(iter(answer.replies.values()))+}\n",
        "unit/stores/test_lanes.py",
    ),
    Defect(
        "a key twice in the line leaves in one batch",
        "stores/lanes/line.py",
        "more.kind != request.kind or[- more.key in keys or-]",
        "unit/stores/test_lanes.py",
    ),
    Defect(
        "a lost connection leaves its batch waiting",
        "stores/lanes/line.py",
        "        if [-not -]ticket.is_over:\n            ticket.fail(_for_another(error))",
        "unit/stores/test_lanes.py",
    ),
    # --- HTTP, messages -------------------------------------------------------------------------------------------
    Defect(
        "two callers share their keys",
        "http/rules.py",
        "fields = ((name, *place, [-scope-]{+None+}), print_,",
        "unit/http unit/web",
    ),
    Defect(
        "another body under the same key gets the recorded answer",
        "http/rules.py",
        "        print_ = self._print(request, [-body-]{+b''+})\n",
        "unit/http unit/web",
    ),
    Defect(
        "an answer of the server's failure is recorded for one that did not run",
        "http/rules.py",
        "    return [-status < 500 and status not in _REFUSALS-]{+True+}\n",
        "unit/http unit/web",
    ),
    Defect(
        "two keys in a request are one", "http/request.py", "    if len(lines) > [-1-]{+2+}:\n", "unit/http unit/web"
    ),
    Defect(
        "a message whose target refused it is sent for ever",
        "outbox/sending.py",
        "next([-(entry for entry in self._entries if entry.refused is None)-]{+iter(self._entries)+}, None)",
        "unit/outbox",
    ),
    Defect(
        "a message is sent in a send lease that may be another's",
        "outbox/sending.py",
        "return [-self._until - boottime() >= SENT_WITHIN + _SPARE-]{+True+}",
        "unit/outbox",
    ),
    Defect(
        "a message is struck out before it is sent",
        "outbox/sending.py",
        "        if [-error is None-]{+True+}:\n            del self._entries[place]",
        "unit/outbox",
    ),
    # --- steps, operators, seals --------------------------------------------------------------------------------------
    Defect(
        "a recorded step is made again",
        "claim/stepping/handler_steps.py",
        "        if entry is [-not None and entry.done-]{+None+}:\n            return RecordedStep(entry, codec)",
        "unit/claim/test_steps.py",
    ),
    Defect(
        "a step begins after one that was not recorded",
        "claim/stepping/attempt.py",
        "        if [-self.notes.failed is not None:\n            raise self.notes.failed\n        if -](refusal",
        "unit/claim/test_steps_recorded.py",
    ),
    Defect(
        "a parking step runs again",
        "claim/stepping/attempt.py",
        "        if entry is not None and [-not -]entry.done and parks:",
        "unit/claim/test_steps.py",
    ),
    Defect(
        "an operator takes a step back from a worker",
        "stores/ledger.py",
        "            before = record\n[-            _check_free(record, now)\n-]",
        "unit/claim/test_steps_recorded.py",
    ),
    Defect(
        "an operator settles what a worker holds",
        "stores/ledger.py",
        'look at it again")\n[-            _check_free(record, now)\n-]',
        "unit/stores/test_ledger.py",
    ),
    Defect(
        "a seal that fails records in the open",
        "results/sealing.py",
        '        [-raise NotSealed(f"its seal returned {type(token).__name__} instead of bytes")-]{+return text.encode()+}',
        "unit/results/test_sealing.py",
    ),
    Defect(
        "a batch begins a handler whose claim was lost",
        "batch/order.py",
        "if [-item.claim.lost-]{+False+}:",
        "unit/batch/test_batch_cut_short.py",
    ),
    Defect(
        "a lost claim is flushed",
        "batch/checkpoint/blocking.py",
        "            [-raise lost-]{+pass+}\n",
        "unit/batch/test_checkpoint_failures.py",
    ),
    # --- Lambda -------------------------------------------------------------------------------------------------------
    Defect(
        "a FIFO group goes on after its first failure",
        "aws/events/sqs.py",
        'group=(lambda delivery: delivery.[-group-]{+id+}) if stop == "group"',
        "unit/aws/test_lambda_handlers.py",
    ),
    Defect(
        "the key of a message's sender is not read",
        "aws/events/sqs.py",
        '[-text_at(record, "messageAttributes", KEY_ATTRIBUTE, "stringValue") or -]delivery.id',
        "unit/aws/test_lambda_reading.py",
    ),
    Defect(
        "a stream goes on after its first failure",
        "aws/events/streams.py",
        '"on_kinesis", _kinesis, group=[-_shard-]{+lambda delivery: delivery.id+},',
        "unit/aws/test_lambda_handlers.py",
    ),
    Defect(
        "a consumer with enhanced fan-out has keys of its own",
        "aws/events/streams.py",
        '(stream[-.partition("/consumer/")[0]-], event_id)',
        "unit/aws/test_lambda_reading.py",
    ),
    # --- web ----------------------------------------------------------------------------------------------------------
    Defect(
        "a client that leaves cuts the effect short",
        "web/sending.py",
        "while [-not self._held.is_over and not self._gate.ends_with_client-]{+False+}:",
        "unit/web/test_web_wsgi.py",
    ),
    Defect(
        "an answer whose claim was lost looks whole",
        "web/sending.py",
        "elif self.has_begun:\n            [-assert self._held.error is not None\n            raise self._held.error-]{+pass+}\n",
        "unit/web/test_web_wsgi.py",
    ),
    Defect(
        "an asynchronous client that leaves cuts the effect short",
        "web/sending.py",
        "elif [-self._gate.ends_with_client and -]not self._held.is_over:",
        "unit/web/test_web_django.py",
    ),
    Defect(
        "a method in small letters goes round the guard",
        "web/wsgi.py",
        'if str(environ["REQUEST_METHOD"])[-.upper()-]',
        "unit/web/test_web_requests.py",
    ),
    # --- pipelines, relays --------------------------------------------------------------------------------------------
    Defect(
        "a duplicate passes a guard of a pipeline",
        "pipelines/guards.py",
        "[-        elif outcome.replayed and self._drops:\n            return None\n-]",
        "unit/pipelines/test_guards_of_pipelines.py unit/pipelines/test_pipelines_run.py",
    ),
    Defect(
        "an item in another place of its list is another item",
        "pipelines/guards.py",
        "inside = message[-._replace(at=())-]",
        "unit/pipelines/test_pipelines_run.py",
    ),
    Defect(
        "what was printed before a crash is not printed again",
        "pipelines/guards.py",
        'call.printed.extend([-record.get("printed", ())-]{+()+})',
        "unit/pipelines/test_guards_of_pipelines.py unit/pipelines/test_pipelines_run.py",
    ),
    Defect(
        "a relay sends what it cannot open",
        "outbox/relay.py",
        "        if [-entry.is_sealed and self._seal is None-]{+False+}:\n",
        "unit/outbox/test_relay.py",
    ),
    Defect(
        "an expired record is taken for one that has overtaken a message's",
        "outbox/sending.py",
        "if record is None[- or record.fence < self.record.fence-]:",
        "unit/outbox/test_transactions.py",
    ),
    # --- what outlives a handler --------------------------------------------------------------------------------------
    Defect(
        "a claim is seen by what outlives its handler",
        "claim/lease.py",
        "while claim is not None and claim.[-left-]{+lost+}:",
        "unit/claim/test_guard.py",
    ),
    Defect(
        "a server goes on reading under a claim",
        "web/asgi_delivery.py",
        "await [-_Within(self._context, self._send(message))-]{+self._send(message)+}",
        "integration/web/test_web_servers.py",
    ),
    Defect(
        "a durable function's next run has begun no step",
        "claim/stepping/attempt.py",
        "claim.attempt > 1 or [-claim.goes_on or -]claim.record.steps",
        "integration/aws/test_durable.py",
    ),
)
