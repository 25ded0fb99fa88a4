"""Objects in S3 that are written once: the first write of a name is its content for good."""

import asyncio
from typing import Final

from onceward.core.clock import boottime
from onceward.errors import StoreError
from onceward.pipelines.steps.contract import StepFailed
from onceward.wire.calls import ObjectCall, ServiceAnswer
from onceward.wire.clock import ServerClock
from onceward.wire.codes import code_of, message_of
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

_TIMEOUT: Final = 60.0  # seconds for one request
_PAUSES: Final = (0.1, 0.5, 2.0, 5.0, None)  # seconds; None: no other try
_CREATE: Final = {"If-None-Match": "*"}  # S3 API Reference, PutObject
_FIRST_BYTE: Final = {"Range": "bytes=0-0"}


class Bucket:
    """One bucket.

    Args:
        name: its name.
        region: its region; None is that of the environment.
    """

    def __init__(self, name: str, region: str | None) -> None:
        self._name = name
        self._wires = opened(region, timeout=_TIMEOUT, clock=boottime, s3=from_environment("s3"))
        self._clock = ServerClock(boottime)

    async def write(self, key: str, content: bytes) -> None:
        """Write an object, unless an earlier request has written it. Its name must belong to its content.

        Raises:
            StepFailed: it is not there, or :meth:`has` has taken its place.
        """
        answer = await self._asked(ObjectCall("PUT", self._name, key, content, _CREATE), 412)
        if answer.status == 412 and await self._is_empty(key):
            raise StepFailed(f"{key} was given up by another worker, because this one was too late")

    async def has(self, key: str) -> bool:
        """Return whether an object was written. If not, an empty one takes its place, and it never will be.

        Raises:
            StepFailed: S3 cannot be reached, or refuses it.
        """
        answer = await self._asked(ObjectCall("PUT", self._name, key, b"", _CREATE), 412)
        return answer.status == 412 and not await self._is_empty(key)

    def close(self) -> None:
        """Close the connections."""
        self._wires.close()

    async def _is_empty(self, key: str) -> bool:
        answer = await self._asked(ObjectCall("GET", self._name, key, None, _FIRST_BYTE), 416)
        return answer.status == 416 or not answer.body

    async def _asked(self, call: ObjectCall, other: int) -> ServiceAnswer:
        """Return an answer whose status is a success or ``other``."""
        for pause in _PAUSES:
            try:
                answer = await self._ask(call)
            except StoreError as error:
                why: Exception | None = error
                text, passes = str(error), error.transient
            else:
                if answer.status < 300 or answer.status == other:
                    return answer
                why, text = None, f"{call.method} {call.key}: {code_of(answer)} ({message_of(answer)})"
                passes = answer.status >= 500 or answer.status in {409, 429}  # 409: another request for it runs
            if pause is None or not passes:
                raise StepFailed(f"bucket {self._name}: {text}") from why
            await asyncio.sleep(pause)
        raise AssertionError

    async def _ask(self, call: ObjectCall) -> ServiceAnswer:
        answer = await self._sent(call)
        return await self._sent(call) if answer.status >= 400 and self._wires.may_renew(answer) else answer

    async def _sent(self, call: ObjectCall) -> ServiceAnswer:
        answer = await self._wires.send_async(call, self._clock.signing())
        assert isinstance(answer, ServiceAnswer)
        self._clock.learn(answer)
        return answer
