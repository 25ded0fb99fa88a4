"""Reads the facts that the checks of ``diagnosis.py`` are about. Nothing is changed anywhere."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onceward.aws.doctor.facts import Facts, File, Finding, QueueSettings, Table, Trigger
from onceward.aws.sqs.address import address_of
from onceward.aws.sqs.queue import Queue
from onceward.core.drivers import Steps, drive
from onceward.core.policy import Policy
from onceward.errors import OncewardError
from onceward.stores.contract import Store
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.wire.calls import Answer, Call
from onceward.wire.codes import code_of

if TYPE_CHECKING:
    from onceward.stores.dynamodb import DynamoStore

T = TypeVar("T")
_UNKNOWN = {"UnknownOperation", "InvalidAction", "NotImplemented", "UnsupportedOperation"}  # codes of emulators
_TIMES = ("lease_until", "created_at", "fence")  # fields of a record that DynamoDB could take for a time to delete it


class Unanswered(OncewardError):
    """The service at this endpoint does not know the question."""


class Look:
    """One look at a queue, its functions and a ledger.

    Args:
        policy: the options of the consumer's guard.
        function: the Lambda function that must be among the queue's, by its name or ARN; None is whichever there are.
    """

    def __init__(self, policy: Policy, function: str | None = None) -> None:
        self._facts = Facts(policy, function=None if function is None else _name(function))
        self._gaps: list[Finding] = []

    @property
    def facts(self) -> Facts:
        """What was seen."""
        return self._facts._replace(gaps=tuple(self._gaps))

    def queue(self, name: str) -> None:
        """Look at a queue, its dead-letter queue, and its event source mappings.

        Raises:
            ValueError: it is not a queue's URL, ARN or name.
        """
        queue = self._tried("queue", lambda: _settings(Queue(name)))
        if queue is None:
            return
        self._facts = self._facts._replace(queue=queue)
        arn, endpoint = queue.dead_letters, address_of(name).endpoint
        if arn is not None:
            dead = self._tried("dead letters", lambda: _settings(Queue(arn, endpoint=endpoint)))
            self._facts = self._facts._replace(dead=dead)
        self._functions(queue)

    def ledger(self, store: Store) -> None:
        """Look at a ledger."""
        from onceward.stores.dynamodb import DynamoStore
        from onceward.stores.sqlite.store import SqliteStore

        if isinstance(store, DynamoStore):
            ledger: Table | File | str | None = self._table(store)
        elif isinstance(store, SqliteStore):
            ledger = _file(store.path)
        else:
            ledger = store.url
        self._facts = self._facts._replace(ledger=ledger)

    # --- DynamoDB -----------------------------------------------------------------------------------------------------

    def _table(self, store: "DynamoStore") -> Table | None:
        name = {"TableName": store.requests.table}

        def asked(check: str, action: str, *, needed: bool = True) -> Mapping[str, Any] | None:
            return self._tried(check, lambda: drive(_answer(store, action, name), store), needed=needed)

        answer = asked("table", "DescribeTable")
        if answer is None:
            return None
        wanted = tuple((part.name, "S") for part in store.layout.parts)
        layout = store.layout
        times = frozenset(layout.names[field] for field in _TIMES)
        ledger = Table(store.url, store.requests.table, status=None, wanted=wanted, expiry=layout.expiry, times=times)
        if not answer:
            return ledger
        described = answer["Table"]
        on_demand = described.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
        ttl = asked("TTL", "DescribeTimeToLive")
        backups = asked("point-in-time recovery", "DescribeContinuousBackups", needed=False)
        return ledger._replace(
            status=described["TableStatus"],
            keys=_keys(described),
            on_demand=on_demand,
            scaled=None if on_demand else self._scaled(described["TableArn"]),
            ttl=None if ttl is None else _ttl(ttl),
            recovers=None if not backups else _recovers(backups),
            regions=_lagging(described),
            skew=(time.time() - store.clock.latest(), time.time() - store.clock.earliest()),
        )

    def _scaled(self, arn: str) -> bool | None:
        """Tell whether a table's capacity is scaled, if that can be found out."""
        try:
            client = _client("application-autoscaling", arn.split(":")[3])
            told = client.describe_scalable_targets(
                ServiceNamespace="dynamodb", ResourceIds=[f"table/{arn.rpartition('/')[2]}"]
            )
        except Exception:  # no botocore, no permission, no credentials: it is not known, and that is told
            return None
        return bool(told["ScalableTargets"])

    # --- Lambda -------------------------------------------------------------------------------------------------------

    def _functions(self, queue: QueueSettings) -> None:
        named = self._facts.function is not None
        check = "event source mapping"
        try:
            triggers = _triggers(queue.arn)
        except ImportError:
            self._gap(
                check, "Lambda's mappings are not looked at without botocore", "pip install botocore", needed=named
            )
        except Exception as error:  # botocore's errors have no root of their own
            self._gap(
                check,
                f"Lambda's mappings of {queue.name} could not be read: {error}",
                "allow lambda:ListEventSourceMappings, lambda:GetFunctionConfiguration and lambda:GetFunctionConcurrency",
                needed=named,
            )
        else:
            self._facts = self._facts._replace(triggers=triggers)

    # --- what cannot be seen ------------------------------------------------------------------------------------------

    def _tried(self, check: str, look: Callable[[], T], *, needed: bool = True) -> T | None:
        try:
            return look()
        except Unanswered as error:
            self._gap(check, str(error), "", needed=False)
        except OncewardError as error:
            self._gap(check, str(error), "", needed=needed)
        return None

    def _gap(self, check: str, says: str, mend: str, *, needed: bool) -> None:
        """Note what could not be looked at: a failure of the doctor only where the caller asked for it, and never safe."""
        self._gaps.append(Finding("unknown" if needed else "skipped", check, says, "it was not looked at", mend))


def _settings(queue: Queue) -> QueueSettings:
    try:
        return QueueSettings.read(queue.attributes())
    finally:
        queue.close()


def _answer(store: "DynamoStore", action: str, body: Mapping[str, object]) -> Steps[Mapping[str, Any]]:
    """Ask about a table; the answer is empty when there is none.

    Raises:
        StoreError: it was refused, or no answer came.
    """
    call = Call(DYNAMODB, action, body)
    answer: Answer = yield from store.ask(call, gone=400)
    if answer.status == 200:
        return cast("Mapping[str, Any]", answer.body)
    if code_of(answer) == "ResourceNotFound":
        return {}
    if code_of(answer) in _UNKNOWN or answer.status == 501:
        raise Unanswered(f"the endpoint of {store.url} does not answer {action}, which AWS does and emulators may not")
    raise store.failure(call, answer)


def _keys(described: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    types = {one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]}
    schema = sorted(described["KeySchema"], key=lambda one: str(one["KeyType"]))  # HASH first
    return tuple((one["AttributeName"], types[one["AttributeName"]]) for one in schema)


def _ttl(told: Mapping[str, Any]) -> str:
    """Return the attribute that a TTL is on, or "" when it is off."""
    described = told.get("TimeToLiveDescription", {})
    return (
        str(described.get("AttributeName", "")) if described.get("TimeToLiveStatus") in {"ENABLED", "ENABLING"} else ""
    )


def _recovers(told: Mapping[str, Any]) -> bool:
    described = told.get("ContinuousBackupsDescription", {}).get("PointInTimeRecoveryDescription", {})
    return bool(described.get("PointInTimeRecoveryStatus") == "ENABLED")


def _lagging(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the regions of replicas that are not strongly consistent (DynamoDB API Reference, TableDescription)."""
    if described.get("MultiRegionConsistency") == "STRONG":
        return ()
    return tuple(one["RegionName"] for one in described.get("Replicas") or ())


def _name(function: str) -> str:
    """Return a function's name, of that or of an ARN, with or without an alias or version."""
    parts = function.split(":")
    return parts[6] if function.startswith("arn:") and len(parts) > 6 else parts[0]


def _client(service: str, region: str) -> Any:
    # botocore has no annotations
    from botocore.session import Session  # type: ignore[import-untyped]

    return Session().create_client(service, region_name=region)


def _triggers(arn: str) -> tuple[Trigger, ...]:
    client = _client("lambda", arn.split(":")[3])
    found = []
    for page in client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=arn):
        for mapping in page["EventSourceMappings"]:
            told = client.get_function_configuration(FunctionName=mapping["FunctionArn"])
            function = told["FunctionName"]  # reserved concurrency is of all its aliases and versions
            try:
                reserved = client.get_function_concurrency(FunctionName=function).get("ReservedConcurrentExecutions")
            except Exception:  # a permission of its own, for a check that can do without
                reserved = None
            found.append(
                Trigger(
                    function=function,
                    timeout=told["Timeout"],
                    enabled=mapping["State"] not in {"Disabled", "Disabling"},
                    partial="ReportBatchItemFailures" in (mapping.get("FunctionResponseTypes") or ()),
                    window=mapping.get("MaximumBatchingWindowInSeconds") or 0,
                    concurrency=(mapping.get("ScalingConfig") or {}).get("MaximumConcurrency"),
                    reserved=reserved,
                    filtered=bool((mapping.get("FilterCriteria") or {}).get("Filters")),
                )
            )
    return tuple(found)


# --- files --------------------------------------------------------------------------------------------------------------


def _file(path: str) -> File:
    folder = next(part for part in Path(path).parents if part.exists())
    there = Path(path).exists()
    may = os.access(path, os.R_OK | os.W_OK) if there else folder == Path(path).parent
    return File(path, _kind(str(folder)), shutil.disk_usage(folder).free, may and os.access(folder, os.W_OK | os.X_OK))


def _kind(folder: str) -> str | None:
    """Return the kind of the file system that a folder is on, where Linux tells it (proc_pid_mountinfo(5))."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(folder)
    found = {}
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")  # a space is written \040
        if real == point or real.startswith(point.rstrip("/") + "/"):
            found[point] = after.split()[0]  # a later mount hides an earlier one
    return found[max(found, key=len)] if found else None
