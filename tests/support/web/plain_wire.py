"""The wires of a store that reaches a test's server."""

from onceward.core.clock import boottime
from onceward.wire.wires import Wires, opened


def plain_wires(url, clock=boottime) -> Wires:
    return opened("eu-west-1", timeout=30.0, clock=clock, dynamodb=url, s3=None)
