"""The steps of a pipeline, a class each. ``pipelines/kit.py`` says what a step is."""

from typing import Final

# Name in the file → module and class.
STEPS: Final = {
    "call": "onceward.pipelines.steps.effects:CallStep",
    "each": "onceward.pipelines.steps.plain:EachStep",
    "filter": "onceward.pipelines.steps.plain:FilterStep",
    "guard": "onceward.pipelines.steps.plain:GuardStep",
    "http": "onceward.pipelines.steps.http:HttpStep",
    "map": "onceward.pipelines.steps.plain:MapStep",
    "put": "onceward.pipelines.steps.sql:PutStep",
    "retry": "onceward.pipelines.steps.effects:RetryStep",
    "run": "onceward.pipelines.steps.run:RunStep",
    "send": "onceward.pipelines.steps.plain:SendStep",
    "sql": "onceward.pipelines.steps.sql:SqlStep",
    "switch": "onceward.pipelines.steps.plain:SwitchStep",
}
