"""The alarms of the runbook for the metrics of ``observe/cloudwatch.py``, as resources of CloudFormation.

``observability/cloudwatch-alarms.yaml`` and ``onceward init --print`` are made from this one table.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

NAMESPACE: Final = "onceward"


class Alarm(NamedTuple):
    """One alarm. It fires when its statistic is above ``above`` in ``late`` of ``periods`` periods of ``period`` seconds."""

    name: str
    says: str
    metric: str
    above: float = 0
    period: int = 900
    periods: int = 1
    late: int = 1
    statistic: str = "Sum"


ALARMS: Final = (
    Alarm("ParkedKeys", "Messages were given up and wait for a person: onceward ls --status PARKED.", "Parkings"),
    Alarm(
        "LapsedKeysStand",
        "Keys have had no worker for 15 minutes: onceward ls --status LAPSED.",
        "KeysLapsed",
        period=300,
        periods=3,
        late=3,
        statistic="Minimum",
    ),
    Alarm("TakeoversJump", "Workers vanish, or the lease is too short for the handler.", "Takeovers", above=3),
    Alarm(
        "LeasesLost", "A handler loses its lease while it runs, so its effect may be made twice.", "LeasesLost", above=1
    ),
    Alarm(
        "SettlingLags",
        "Ends of claims are recorded late. The ledger is away or overloaded.",
        "SettlingDelay",
        above=5,
        period=300,
        periods=2,
        late=2,
        statistic="p90",
    ),
    Alarm("NotRecorded", "Ends of claims could not be recorded. Their handlers run again.", "NotRecorded", period=300),
    Alarm(
        "OutboxAges",
        "Messages wait to be sent. The target is away, or nothing relays.",
        "OutboxAge",
        above=300,
        period=300,
        periods=2,
        late=2,
        statistic="Maximum",
    ),
    Alarm(
        "OutboxRefused", "A target refuses messages for good. They stay in their records.", "OutboxRefused", period=300
    ),
    Alarm(
        "Throttles",
        "The ledger is throttled. Raise the table's capacity, or switch it to on-demand.",
        "LedgerThrottles",
        above=30,
        period=300,
        periods=3,
        late=2,
    ),
)


def resource(
    alarm: Alarm, name: object, namespace: object, dimensions: Mapping[str, object], topic: object
) -> dict[str, Any]:
    """Return one alarm's resource. ``topic`` is the SNS topic that is told when it begins and when it ends."""
    statistic = "ExtendedStatistic" if alarm.statistic.startswith("p") else "Statistic"
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": name,
            "AlarmDescription": alarm.says,
            "Namespace": namespace,
            "MetricName": alarm.metric,
            "Dimensions": [{"Name": of, "Value": value} for of, value in dimensions.items()],
            statistic: alarm.statistic,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": alarm.above,
            "Period": alarm.period,
            "EvaluationPeriods": alarm.periods,
            "DatapointsToAlarm": alarm.late,
            "TreatMissingData": "notBreaching",
            "AlarmActions": [topic],
            "OKActions": [topic],
        },
    }


def resources(service: object, namespace: object, topic: object, *, prefix: str) -> dict[str, Any]:
    """Return the resources of all alarms of a service. ``prefix`` begins their names, and can have ``${...}`` of the document."""

    def named(alarm: Alarm) -> object:
        text = f"{prefix}-{alarm.name}"
        return {"Fn::Sub": text} if "${" in text else text

    return {one.name: resource(one, named(one), namespace, {"service": service}, topic) for one in ALARMS}
