"""What must have a write before it counts."""

from typing import Any, NamedTuple

from redis import exceptions


class Confirmation(NamedTuple):
    """The replicas, and the disks, that a write waits for.

    Attributes:
        replicas: how many replicas must have it.
        disk: whether the server, and each of those replicas, must have it in its append-only file on the disk.
        timeout: seconds to wait for them.
    """

    replicas: int
    disk: bool
    timeout: float

    def __bool__(self) -> bool:
        return self.disk or self.replicas > 0

    @property
    def command(self) -> list[object]:
        """The Redis command that waits."""
        milliseconds = round(self.timeout * 1000)
        if self.disk:
            return ["WAITAOF", 1, self.replicas, milliseconds]
        return ["WAIT", self.replicas, milliseconds]

    def missing(self, answer: Any) -> Exception | None:
        """Return the error if the answer to that command says that the write does not count."""
        if isinstance(answer, Exception):
            return answer
        on_disk, reached = answer if self.disk else (1, answer)
        if on_disk and reached >= self.replicas:
            return None
        if not on_disk:
            return exceptions.TimeoutError(
                "the write is not on the server's disk in time, and disk=yes asks for it. It may be kept all the same"
            )
        return exceptions.TimeoutError(
            f"{reached} replica(s) have confirmed the write in time, and wait={self.replicas} asks for more. It may be kept all the same"
        )
