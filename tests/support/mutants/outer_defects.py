"""Planted defects of stores, faces, pipelines and relays."""

from mutants.defect import Defect

_REGISTER = "conformance/test_conformance.py"

DEFECTS = (
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
