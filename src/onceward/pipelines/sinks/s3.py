"""The sink ``s3``."""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from onceward.core.clock import boottime
from onceward.errors import StoreError
from onceward.pipelines.call import PipelineMessage, StepFailed
from onceward.pipelines.contract import SinkAction, SinkSettings
from onceward.pipelines.settings import Expression
from onceward.wire.calls import ObjectCall, ServiceAnswer
from onceward.wire.clock import ServerClock
from onceward.wire.codes import code_of, message_of
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit

_TIMEOUT: Final = 60.0  # seconds for one request


class S3Sink(SinkSettings, kw_only=True):
    """Write each message to an object of its own in S3, as JSON.

    The object's name is the derived key, so a later attempt writes the same object again.
    """

    bucket: Annotated[str, Meta(description="The bucket's name.", min_length=1)]
    prefix: Annotated[str, Meta(description="How the objects' names begin, as in orders/.")] = ""
    message: Annotated[Expression, Meta(description="What is written.")] = "message"
    region: Annotated[str | None, Meta(description="The region, if it is not that of the environment.")] = None

    @property
    def title(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def build(self, kit: "Kit") -> SinkAction:
        if not self.bucket.replace("-", "").replace(".", "").isalnum() or not self.bucket.isascii():
            kit.mistake("bucket", f"{self.bucket!r} is not the name of a bucket")
        find = kit.expression("message", self.message)
        bucket = Bucket(self.bucket, self.region)
        kit.closing(bucket.close)

        async def take(message: PipelineMessage, call: "PipelineCall") -> None:
            await call.record(_put, bucket, f"{self.prefix}{call.key()}.json", msgspec.json.encode(find(message)))

        return take


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

    async def put(self, key: str, content: bytes) -> None:
        """Write an object; raises StepFailed if S3 does not take it."""
        call = ObjectCall("PUT", self._name, key, content)
        try:
            answer = await self._sent(call)
            if answer.status >= 400 and self._wires.may_renew(answer):
                answer = await self._sent(call)
        except StoreError as error:
            raise StepFailed(f"bucket {self._name}: {error}") from error
        if answer.status >= 300:
            raise StepFailed(f"bucket {self._name}: PUT {key}: {code_of(answer)} ({message_of(answer)})")

    async def close(self) -> None:
        """Close the connections."""
        self._wires.close()

    async def _sent(self, call: ObjectCall) -> ServiceAnswer:
        answer = await self._wires.send_async(call, self._clock.signing())
        assert isinstance(answer, ServiceAnswer)
        self._clock.learn(answer)
        return answer


async def _put(bucket: Bucket, key: str, content: bytes) -> None:
    await bucket.put(key, content)
