"""The options of a guard: their defaults, and which of them contradict each other."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypedDict

from onceward.core.arguments import check_count, check_exceptions, check_flag

OnBusy = Literal["raise", "skip"] | float
OnLapse = Literal["retry", "park"]
OnError = Literal["release", "park"]
Seal = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]  # (seal, open)

DAY = 86400.0
LONGEST = 1e10  # seconds, three centuries: more is a mistake, or infinity, which clocks and stores cannot add


class Options(TypedDict, total=False):
    """The keywords of a policy. :class:`Policy` says what each means, and its unit."""

    lease: float
    heartbeat: float | None
    max_attempts: int | None
    on_busy: OnBusy
    on_lapse: OnLapse
    on_error: OnError
    final: tuple[type[Exception], ...]
    retention: float | None
    cache: int
    max_result: int | None
    seal: Seal | None
    keep_input: bool


class Policy(NamedTuple):
    """The options of a guard.

    Attributes:
        lease: Seconds for which a claim holds without a heartbeat.
        heartbeat: Seconds between renewals while the handler runs; None is a third of the lease, 0 never renews.
        max_attempts: How often a key can be claimed before it is parked; None is no limit.
        on_busy: What a duplicate does while another worker runs the handler: "raise" ``Busy``, "skip" (return None), or a
            number: wait for the result for up to so many seconds.
        on_lapse: What to do with a key whose worker vanished: "retry" it, or "park" it until a person acts.
        on_error: What to do when the handler raises: "release" the key for a retry, or "park" it.
        final: Exceptions that onceward records like a result. Every duplicate raises them again.
        retention: Seconds for which a completed record answers duplicates; None is for ever. The default is 14 days,
            the longest that an SQS queue can keep a message (``MessageRetentionPeriod``).
        cache: How many recorded results this process remembers. A duplicate of one of them needs no request to the ledger.
            So ``onceward clear`` and ``retry --from`` have no effect on these keys until the process ends.
        max_result: Largest encoded result to store, in bytes. With a larger result the key completes, but duplicates cannot
            get the result. None is the ledger's default: 256 KiB, or 16 MiB in DynamoDB with ``blobs=``.
        seal: A pair of plain functions from bytes to bytes. The first encrypts or redacts each result and error text
            before it is recorded. The second opens it for a duplicate. If the first
            fails, the result is not recorded.
        keep_input: Whether the record keeps a call's arguments (at most 64 KiB) until it is completed, and does not expire
            before. Then :meth:`onceward.Once.complete_lapsed` can finish a half-done key. For functions only.
    """

    lease: float = 60.0
    heartbeat: float | None = None
    max_attempts: int | None = None
    on_busy: OnBusy = "raise"
    on_lapse: OnLapse = "retry"
    on_error: OnError = "release"
    final: tuple[type[Exception], ...] = ()
    retention: float | None = 14 * DAY
    cache: int = 0
    max_result: int | None = None
    seal: Seal | None = None
    keep_input: bool = False

    @property
    def wait(self) -> float:
        """Seconds a duplicate waits for the current run."""
        return 0.0 if isinstance(self.on_busy, str) else float(self.on_busy)

    def checked(self) -> "Policy":
        """Return self; raises ValueError or TypeError that names the option, its value and what is right."""
        for name in ("lease", "heartbeat", "retention"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TypeError(f"{name}={value!r}: give a number of seconds")
        if not 0 < self.lease <= LONGEST:
            raise ValueError(f"lease={self.lease!r}: give a positive number of seconds, at most {LONGEST:.0e}")
        if self.heartbeat is not None and not 0 <= self.heartbeat < self.lease:
            raise ValueError(
                f"heartbeat={self.heartbeat!r} does not fit lease={self.lease!r}: the lease would end before it is "
                "renewed. Give a heartbeat below the lease (default: a third of it), or 0 for none"
            )
        if self.retention is not None and not self.retention >= self.lease:
            raise ValueError(
                f"retention={self.retention!r} is shorter than lease={self.lease!r}: the record would be forgotten while "
                "its handler may still run; raise retention or lower lease"
            )
        if self.retention is not None and self.retention > LONGEST:
            raise ValueError(f"retention={self.retention!r}: give at most {LONGEST:.0e} seconds; None is for ever")
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts)
        check_count("cache", self.cache, least=0)
        if self.max_result is not None:
            check_count("max_result", self.max_result, least=0)
        self._check_choices()
        if self.seal is not None:
            _check_seal(self.seal)
        check_flag("keep_input", self.keep_input)
        return self

    def _check_choices(self) -> None:
        on_busy: object = self.on_busy
        waits = isinstance(on_busy, int | float) and not isinstance(on_busy, bool) and on_busy >= 0
        if not waits and on_busy not in {"raise", "skip"}:
            raise ValueError(f'on_busy={self.on_busy!r}: give "raise", "skip" or the seconds to wait for the result')
        if self.on_lapse not in {"retry", "park"}:
            raise ValueError(f'on_lapse={self.on_lapse!r}: give "retry" or "park"')
        if self.on_error not in {"release", "park"}:
            raise ValueError(f'on_error={self.on_error!r}: give "release" or "park"')
        check_exceptions("final", self.final)


def _check_seal(seal: object) -> None:
    from inspect import iscoroutinefunction

    if not isinstance(seal, tuple) or len(seal) != 2 or not all(map(callable, seal)):
        kind = type(seal).__name__  # the value may be a secret
        raise TypeError(f"seal= is a {kind}: give a pair of functions, as in seal=(fernet.encrypt, fernet.decrypt)")
    if any(map(iscoroutinefunction, seal)):
        raise TypeError("seal= has a coroutine function, and nobody would await it: give plain ones")
