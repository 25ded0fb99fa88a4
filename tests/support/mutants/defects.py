"""Planted defects, each a change of one place in a file of src/onceward. One of its tests must fail."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_CHANGE = re.compile(r"(?:\[-(.+?)-\])?(?:\{\+(.+?)\+\})?", re.DOTALL)


class Defect(NamedTuple):
    """A change, and who must see it."""

    name: str
    file: str  # under src/onceward/
    change: str  # as git's --word-diff shows it: [-what goes-]{+what comes+}; the text without it stands there once
    tests: str  # files or folders under tests/, or node ids, separated by spaces
    invariant: int  # the number of the rule in the design that it breaks, or 0

    def planted(self, text: str) -> str:
        """Return the text of its file with the defect; raises ValueError if its line is not there, or not only once."""
        before = _CHANGE.sub(r"\1", self.change)
        if text.count(before) != 1:
            raise ValueError(f"{self.name}: what it changes stands {text.count(before)} times in {self.file}")
        return text.replace(before, _CHANGE.sub(r"\2", self.change))


def _read(table: str) -> Iterator[Defect]:
    """Yield the defects of a table: headings ``[file: tests]``, and names below them, perhaps with an invariant, and changes."""
    for section in re.split(r"^\[", table, flags=re.MULTILINE)[1:]:
        file, tests = section.partition("]\n")[0].split(": ")
        tests = " ".join(TESTS.get(word, word) for word in tests.split())
        for number, name, change in re.findall(r"^(\d*) ?([^ \n\]][^]\n]*)\n((?:    .*\n|\n)+)", section, re.MULTILINE):
            yield Defect(
                name, file, re.sub("^    ", "", change, flags=re.MULTILINE).strip("\n"), tests, int(number or 0)
            )


TESTS = {
    "PROTOCOL": "unit/core/test_protocol.py unit/core/test_protocol_ends.py unit/claim/test_guard.py",
    "STEPS": "conformance/test_conformance.py unit/claim/test_guard.py unit/core",
    "CLAIM": "unit/claim unit/core",
}
DEFECTS = tuple(
    _read(r"""
[core/protocol.py: PROTOCOL]
1 a live lease is taken over
    Rule(_is(IN_PROGRESS), (conditions.lease_live,), Verdict.[-BUSY-]{+NEXT+})
3 a completed key runs again
    Rule(_is(COMPLETED), (), Verdict.[-REPLAY-]{+NEXT+})
another input gets the recorded result
        Rule([-None, (conditions.fingerprint_differs,), Verdict.MISMATCH),
        Rule(-]_is(COMPLETED)
a failed handler gets one attempt more
    record.attempts >[-=-] policy.max_attempts)
[core/protocol.py: PROTOCOL conformance/test_conformance.py]
4 a claim does not know its own write
    [-    Rule(_is(IN_PROGRESS), (conditions.same_owner,), Verdict.WON),
    -]
[core/protocol.py: unit/core/test_protocol.py]
1 an expired record is free while its lease lives
    Rule(None, (conditions.expired,[- conditions.no_live_lease-]), Verdict.START)
[core/protocol.py: unit/core]
a record that needs a newer version is taken
    [-    Rule(None, (needs_what_this_version_does_not_know,), Verdict.UNKNOWN),
    -]
[core/protocol.py: CLAIM]
what has not begun counts as an attempt
        attempts = record.attempts[- - 1-]
2 a zombie ends its successor's claim
    if held is None or [-held.owner != owner or fence not in {None, held.fence} or -]unknown_needs(held):
            return Ending.LOST
[core/protocol.py: unit/stores/test_ledger.py unit/core]
3 an operator completes a key that is completed
    if record.status not in [-{IN_PROGRESS, RELEASED, PARKED}-]{+STATUSES+}:
[core/conditions.py: PROTOCOL]
one attempt more than max_attempts
    k.held.attempts >[-=-] k.policy.max_attempts
a lapsed key runs again although it is to be parked
    k.policy.on_lapse == "[-park-]{+parked+}"
[core/conditions.py: unit/core/test_protocol.py]
a lease counts as live when it has just ended
    return k.now <{+=+} k.held.lease_until
[core/writes.py: STEPS]
a takeover keeps the fence
    claim._replace(fence=held.fence[- + 1-],
9 a retry forgets how many there were
    attempts=[-held.attempts + -]1,
[core/belief.py: CLAIM]
6 an owner believes in its lease beyond its end
    return sent + min(remaining, lease) [---]{+++} margin(policy.lease, store.resolution)
[core/belief.py: unit/core/test_protocol.py]
6 an owner believes what a wrong clock says of its lease
    return sent + [-min(remaining, lease)-]{+remaining+} - margin(policy.lease, store.resolution)
[core/steps.py: CLAIM]
6 a lease is counted from the reply
                until = belief(store, policy, [-sent-]{+clock()+}, reply, held, lease)
                in_time
[core/steps.py: STEPS]
8 a store that is away counts as a claim
        if isinstance(error, [-KeyLocked):
            return locked(first)-]{+StoreError):
            return Reply(True, first.at(0.0), 0.0)+}
4 a completion whose reply was lost is lost
            if ending is Ending.DONE:
                return [-Settled(_with_result(held, outcome) if alone else -]{+Lost(+}held)
4 a heartbeat between two tries loses the claim
                return Settled(_with_result(held, outcome) if alone else held)
            [-mine = held-]{+return Lost(held)+}
[core/steps.py: unit/core/test_ending_many.py]
2 a heartbeat of a key that has gone on counts
                elif held is not None and [-is_mine(held, before):
                    again[i] = held-]{+held.owner:
                    again[i] = held._replace(owner=before.owner)+}
[core/record.py: conformance/test_conformance.py unit/core]
a renewal shortens a lease
                [-until = max(until, floor)-]{+pass+}
[stores/sqlite/requests.py: integration/sqlite/test_sqlite_files.py]
a fence of a deleted record comes again
    WHERE ?{names.index('fence') + 1} > [-coalesce((SELECT fence FROM {HIGH}), 0)-]{+0+}"
[claim/lease.py: CLAIM]
6 a lost claim says that it is held
    return self.settled is None and [-(self._lost or (not self.paused and self.clock() >= self._until))-]{+self._lost+}
[claim/lease.py: processes/test_forks.py unit/claim]
1 a forked child ends what its parent claimed
    return [-self._process != worker.generation-]{+False+}
[core/retries.py: STEPS]
7 a failed write is not tried again
    if [-not getattr(error, "transient", False) or left <= 0-]{+error is not None+}:
[results/outcomes.py: unit/claim unit/results]
7 a result that is too large is kept
        if size[- <= policy.max_result-]:
7 a result that cannot be encoded fails the call
    except [-Exception-]{+KeyError+} as error:  # encoding may run a user's code
[claim/ends.py: CLAIM]
9 an exception is masked by the store's
                [-error.add_note(f"onceward: and then {trouble}")-]{+raise+}
            finally:
[claim/ends.py: unit/claim]
9 a handler that was interrupted gives its key back
    return [-outcome.status == RELEASED and self.chain is not None and self.chain.is_cut_short-]{+False+}
7 a handler whose completion failed gives its key back
    return [-self.in_vain is not None or (self.chain is not None and self.chain.notes.failed is not None)-]{+False+}
[claim/ends.py: unit/core/test_ending_many.py]
7 a store that refuses the result gets no second try
    if [-outcome.result is not None and (lasting or self.clock() < self.limit(2, succeeded=True))-]{+False+}:
[claim/called.py: unit/claim unit/test_once.py]
a guarded call of the same key inside itself waits for itself
    [-            if outer.record.key == key:
                    raise Reentrant(key)
    -]
[claim/guard.py: unit/claim unit/core/test_protocol_ends.py]
an interrupt while claiming leaves the key claimed
                        [-settle(partial(self._abandon, self.store, bid), self.store)-]{+pass+}
[claim/heartbeat.py: unit/claim/test_heartbeat.py]
7 heartbeats stop after the first
                claim.[-renewed(outcome)-]{+settled or setattr(claim, 'due', float('inf'))+}


    def _failed
one hanging store stops all heartbeats
                [-if not started("onceward-renewal", self._renew, store, claims):
                    -]self._renew(store, claims)
[keys/reading.py: unit/keys]
10 a key that is missing from the input is None's
            if value is [-None-]{+KeyMissing+}:
                raise KeyMissing(
[keys/expressions.py: unit/keys]
10 a part of a key may be missing
    if [-self._strict and isinstance(parts, list) and None in parts-]{+False+}:
[keys/ledger_keys.py: unit/keys]
the int 1 and the text 1 are one key
    [-(?!({_LIKE_ANOTHER})\Z)-]
a tuple's parts can run together
    form = _form(part, name)
        return form[- if len(form) <= longest-]{+[:longest] if len(form) > 0+} else
[results/codec.py: unit/results]
3 a value that does not come back equal is recorded
        if [-not unchanged-]{+unchanged is None+}:
            raise NotReplayable(f"a {type(value).__name__} does not come back equal from what can
[core/many.py: unit/core/test_ending_many.py]
6 a batch believes in a lease from its reply on
    until = belief(store, bid.policy, [-sent-]{+clock()+}, reply, held, lease=bid.policy.lease)
[core/many.py: unit/batch unit/core integration/dynamodb/test_dynamodb_transact.py]
one throttled key fails its batch
            if isinstance(reply, StoreError):
                [-outcomes[number] = reply
                continue-]{+raise reply+}
            held = reply.record
[core/many.py: unit/batch unit/core]
one poisonous end keeps a batch unrecorded
                raise
            [-return [None] * len(ends)  # the store refuses one; ending each alone finds out which-]{+raise+}
[batch/runner.py: unit/batch]
an interrupted batch does not give its keys back
    [-        yield from give_back_together(self._guard, claims, self._time.limit)
    -]
a group goes on after its first failure
    [- and i.group not in self.order.broken-]]
[stores/sqlite/requests.py: conformance/test_conformance.py]
2 SQLite writes over a newer version
    WHERE key = ? AND [-owner = ? AND fence = ? AND beat = ?-]{+(owner = ? OR fence = ? OR beat = ?)+}"


    _FIRST
SQLite purges what has not expired
    WHERE expires_at [-<-]{+>+}= ? AND
[stores/sqlite/clock.py: processes/test_sqlite_clock.py]
5 SQLite's time is the worker's
    return [-self._start + boottime() if self.boot else -]time.time()
[stores/postgres/statements.py: conformance/test_conformance_sql.py integration/postgres/test_postgres_locks.py]
1 PostgreSQL's insert writes over a record
    f"ON CONFLICT (key) DO [-NOTHING-]{+UPDATE SET owner = excluded.owner+} RETURNING {time}, {COLUMNS}){inserted}"
            )
            self.insert_many
[stores/postgres/statements.py: conformance/test_conformance_sql.py]
2 PostgreSQL compares no beat
    same = " AND ".join(f"t.{name} = {ONE['seen_' + name]}" for name in VERSION{+[:2]+})
PostgreSQL shortens a lease
    ends = f"[-greatest({now} + {values['lease']} * interval '1 second', to_timestamp({values['until']}))-]{+({now} + {values['lease']} * interval '1 second')+}"
[stores/postgres/statements.py: integration/postgres/test_postgres_listening.py]
PostgreSQL tells no waiter
    WHEN [-pg_try_advisory_xact_lock({number})-]{+true+} THEN NULL "
[stores/redis/scripts.py: conformance/test_conformance_redis.py]
2 Redis writes over a newer version
    if not [-(is('owner', a[16]) and is('fence', a[17]) and is('beat', a[18]))-]{+is('owner', a[16])+} then return
Redis' fences do not grow
    math.max(least, [-before + 1, tonumber(t[1]) * 1000000 + tonumber(t[2])-]{+tonumber(t[1])+})
[stores/redis/records.py: integration/redis/test_redis_connections.py]
Redis wakes nobody
    [-was == IN_PROGRESS != status-]{+False+}
[stores/redis/requests.py: integration/redis/test_redis_promises.py integration/redis/test_redis_connections.py]
Redis counts a write that no replica has
    if on_disk[- and reached >= self.replicas-]:
[stores/dynamodb/requests.py: integration/dynamodb/test_dynamodb.py]
1 DynamoDB writes over a record that is there
    "ConditionExpression": "[-attribute_not_exists-]{+attribute_exists(#k) OR attribute_not_exists+}(#k)",
[stores/dynamodb/table.py: integration/dynamodb/test_dynamodb_clock.py integration/dynamodb/test_dynamodb.py]
5 DynamoDB's time is the worker's
    (True, record, [-stamp if answer.date is None else max(stamp, answer.date)-]{+__import__('time').time()+})
[stores/lanes/line.py: unit/stores/test_lanes.py]
a batch in the line mixes up its replies
                    reply = [-answer.replies.get(ticket.request.key)-]{+next(iter(answer.replies.values()))+}
a key twice in the line leaves in one batch
    more.kind != request.kind or[- more.key in keys or-]
a lost connection leaves its batch waiting
            if [-not -]ticket.is_over:
                ticket.end(_for_another(error))
[http/rules.py: unit/http unit/web]
two callers share their keys
    fields = ((name, *place, [-scope-]{+None+}), print_,
another body under the same key gets the recorded answer
            print_ = self._print(request, [-body-]{+b''+})
an answer of the server's failure is recorded for one that did not run
        return [-status < 500 and status not in _REFUSALS-]{+True+}
[http/request.py: unit/http unit/web]
two keys in a request are one
        if len(lines) > [-1-]{+2+}:
[outbox/sending.py: unit/outbox]
a message whose target refused it is sent for ever
    next([-(entry for entry in self._entries if entry.refused is None)-]{+iter(self._entries)+}, None)
a message is sent in a send lease that may be another's
    return [-self._until - boottime() >= SENT_WITHIN + _SPARE-]{+True+}
a message is struck out before it is sent
            if [-error is None-]{+True+}:
                del self._entries[place]
[outbox/sending.py: unit/outbox/test_transactions.py]
an expired record is taken for one that has overtaken a message's
    if record is None[- or record.fence < self.record.fence-]:
[claim/stepping/handler_steps.py: unit/claim/test_steps.py]
a recorded step is made again
            if entry is [-not None and entry.done-]{+None+}:
                return RecordedStep(entry, codec)
[claim/stepping/attempt.py: unit/claim/test_steps_recorded.py]
a step begins after one that was not recorded
            if [-self.notes.failed is not None:
                raise self.notes.failed
            if -](refusal
[claim/stepping/attempt.py: unit/claim/test_steps.py]
a parking step runs again
            if entry is not None and [-not -]entry.done and parks:
[claim/stepping/attempt.py: integration/aws/test_durable.py]
a durable function's next run has begun no step
    claim.attempt > 1 or [-claim.goes_on or -]claim.record.steps
[stores/ledger.py: unit/claim/test_steps_recorded.py]
an operator takes a step back from a worker
                before = record
    [-            _check_free(record, now)
    -]
[stores/ledger.py: unit/stores/test_ledger.py]
an operator settles what a worker holds
    look at it again")
    [-            _check_free(record, now)
    -]
[results/sealing.py: unit/results/test_sealing.py]
a seal that fails records in the open
            [-raise NotSealed(f"its seal returned {type(token).__name__} instead of bytes")-]{+return text.encode()+}
[batch/order.py: unit/batch/test_batch_cut_short.py]
a batch begins a handler whose claim was lost
    elif [-claim.lost-]{+False+}:
[batch/checkpoint/sink.py: unit/batch/test_checkpoint_failures.py]
a lost claim is flushed
                [-raise lost-]{+pass+}
[aws/events/sqs.py: unit/aws/test_lambda_handlers.py]
a FIFO group goes on after its first failure
    group=lambda delivery: delivery.[-group-]{+id+},
[aws/events/sqs.py: unit/aws/test_lambda_reading.py]
the key of a message's sender is not read
    [-text_at(record, "messageAttributes", KEY_ATTRIBUTE, "stringValue") or -]delivery.id
[aws/events/streams.py: unit/aws/test_lambda_handlers.py]
a stream goes on after its first failure
    "on_kinesis", _kinesis, group=[-_shard-]{+lambda delivery: delivery.id+},
[aws/events/streams.py: unit/aws/test_lambda_reading.py]
a consumer with enhanced fan-out has keys of its own
    (stream[-.partition("/consumer/")[0]-], event_id)
[web/sending.py: unit/web/test_web_wsgi.py]
a client that leaves cuts the effect short
    while [-not self._held.is_over and not self._gate.ends_with_client-]{+False+}:
an answer whose claim was lost looks whole
    elif self.has_begun:
                [-assert self._held.error is not None
                raise self._held.error-]{+pass+}
[web/sending.py: unit/web/test_web_django.py]
an asynchronous client that leaves cuts the effect short
    elif [-self._gate.ends_with_client and -]not self._held.is_over:
[web/wsgi.py: unit/web/test_web_requests.py]
a method in small letters goes round the guard
    if str(environ["REQUEST_METHOD"])[-.upper()-]
[pipelines/chain.py: unit/pipelines/test_guards_of_pipelines.py unit/pipelines/test_pipeline_steps.py]
a duplicate passes a guard of a pipeline
    [-        elif outcome.replayed and self._drops:
                return None
    -]
what was printed before a crash is not printed again
    call.printed.extend([-record.get("printed", ())-]{+()+})
[pipelines/chain.py: unit/pipelines/test_pipeline_steps.py]
an item in another place of its list is another item
    inside = message[-._replace(at=())-]
[outbox/relay.py: unit/outbox/test_relay.py]
a relay sends what it cannot open
            if [-entry.is_sealed and self._seal is None-]{+False+}:
[claim/lease.py: unit/claim/test_guard.py]
a claim is seen by what outlives its handler
    while claim is not None and claim.[-left-]{+lost+}:
[web/asgi_handling.py: integration/web/test_web_servers.py]
a server goes on reading under a claim
    await [-self._outside(self._send(message))-]{+self._send(message)+}
""")
)
