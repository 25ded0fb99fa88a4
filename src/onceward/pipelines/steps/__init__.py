"""The steps of a pipeline: one class a file. ``contract.py`` says what a step is."""

from typing import Final

# Name in the file → module and class.
STEPS: Final = {
    "call": "onceward.pipelines.steps.call:CallStep",
    "each": "onceward.pipelines.steps.each:EachStep",
    "filter": "onceward.pipelines.steps.filter:FilterStep",
    "guard": "onceward.pipelines.steps.guard:GuardStep",
    "http": "onceward.pipelines.steps.http:HttpStep",
    "lookup": "onceward.pipelines.steps.lookup:LookupStep",
    "map": "onceward.pipelines.steps.map:MapStep",
    "put": "onceward.pipelines.steps.put:PutStep",
    "retry": "onceward.pipelines.steps.retry:RetryStep",
    "run": "onceward.pipelines.steps.run:RunStep",
    "send": "onceward.pipelines.steps.send:SendStep",
    "sql": "onceward.pipelines.steps.sql:SqlStep",
    "store": "onceward.pipelines.steps.store:StoreStep",
    "switch": "onceward.pipelines.steps.switch:SwitchStep",
}
