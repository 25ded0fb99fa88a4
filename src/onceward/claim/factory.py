"""Makes every guard, from a Once's store, name and defaults and the caller's options.

An adapter gets the factory as ``once.guards``. It makes its guard once, and calls it for each message::

    guard, handler = once.guards.for_function(handle, name, options)
    value = guard.call(guard.key(message.id), None, handle, (message.body,), {})
"""

import sys
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from onceward.core.clock import Clock
from onceward.core.policy import Options, Policy
from onceward.keys.ledger_keys import checked_name, function_name
from onceward.observe.observers import UNOBSERVED, Observers

if TYPE_CHECKING:
    from onceward.claim.called import ClaimParameter
    from onceward.claim.guard import Guard
    from onceward.claim.handler import Handler
    from onceward.claim.inputs import InputCodec
    from onceward.keys.namesakes import Namesakes
    from onceward.keys.signatures import Args, Kwargs
    from onceward.observe.events import Observer
    from onceward.results.codec import Codec
    from onceward.stores.contract import Store
    from onceward.stores.pickling import StorePlace

CLAIM_NAME: Final = "claim"  # the namespace of keys that are claimed without a function
_NAMES: Final = 256  # namespaces whose guards are kept: names can be made from data


class GuardFactory:
    """Makes the guards of one Once. A ``name`` of None is one for each function; ``policy`` has the defaults.

    A ``url`` is what opened the store; without it, the factory cannot be pickled.
    """

    def __init__(
        self,
        store: "Store",
        clock: Clock,
        name: str | None,
        policy: Policy,
        observers: Observers = UNOBSERVED,
        url: str | None = None,
    ) -> None:
        self.store = store
        self.url = url
        self.clock = clock
        self.name = None if name is None else checked_name(name)
        self.defaults = policy
        self.observers = observers
        self._namesakes: list[Namesakes] = []  # one, once it is needed, shared by all that using() makes
        self._run: WeakKeyDictionary[Callable[..., object], Guard] = WeakKeyDictionary()
        # by class, for bound methods: their parameters begin after self
        self._methods: WeakKeyDictionary[type, WeakKeyDictionary[Callable[..., object], Guard]] = WeakKeyDictionary()
        self._keyed: dict[tuple[str | None, str, bool], Guard] = {}  # of keys, by the arguments of for_keys
        FACTORIES.add(self)
        if "sqlalchemy" in sys.modules:
            from onceward.claim import open_transactions  # `import onceward` does not load threading

            open_transactions.watch()

    def using(self, name: str | None, options: Options) -> "GuardFactory":
        """Return a factory with other defaults. A ``name`` of None keeps this factory's."""
        name = self.name if name is None else name
        factory = GuardFactory(self.store, self.clock, name, self.policy(options), self.observers, self.url)
        factory._namesakes = self._namesakes
        return factory

    def __reduce__(self) -> tuple[object, ...]:
        from onceward.stores.pickling import place_of  # only who pickles pays for it

        place = place_of(self.url, self.store.url)
        return _unpickled, (place, self.clock, self.name, self.defaults, self.observers.given)

    def watch_store(self) -> None:
        """Tell the observers, if there are any, of the store's requests. Call it once for a store."""
        if not self.observers.given:
            return
        from onceward.stores.capabilities import OBSERVE

        if (tell := OBSERVE.of(self.store)) is not None:
            tell(self.observers.pass_on)

    def policy(self, options: Options) -> Policy:
        """Return the defaults, changed by ``options``. Raises the errors of :func:`policy_of`."""
        return policy_of(self.defaults, options)

    def for_function(
        self, function: Callable[..., object], name: str | None, options: Options, *, keeps: bool = False
    ) -> "tuple[Guard, Handler]":
        """Return the guard of a handler without a decorator of ours, and what onceward knows of the handler.

        A ``name`` of None is the factory's, or else the function's module and qualified name. ``keeps`` is whether the guard
        is called with the handler's own arguments, so that it can keep them.

        Raises:
            ValueError, TypeError: an option is not valid or does not fit the function, or it shares its name with another.
        """
        from onceward.claim.handler import handler_of  # loaded with the first guard that needs it

        policy = self.policy(options)
        handler = handler_of(function)
        return self._build(function, handler, policy, name, keeps=keeps), handler

    def apart(self, name: str | None, own: Callable[..., object] | str) -> str | None:
        """Return ``name``; without one, in a Once that has a name, a name within that: for handlers whose keys are not unique by themselves.

        So two jobs of one Once may have one window, and two tools one key. ``own`` is the handler, or its own name.

        Raises:
            ValueError: another function has that name.
        """
        if name is not None or self.name is None:
            return name
        name = checked_name(f"{self.name}.{own if isinstance(own, str) else function_name(own)}")
        if not isinstance(own, str):
            self._check_namesakes(name, own)
        return name

    def for_run(
        self, function: Callable[..., object], args: "Args", kwargs: "Kwargs", *, is_async: bool = False
    ) -> "Guard":
        """Return the guard of a handler that runs without a decorator. The handler is examined once.

        Raises:
            TypeError: it is a coroutine function, and ``is_async`` is false; or it gets the context of a durable execution.
        """
        from onceward.claim import durable  # loaded by the first call

        if durable.SDK in sys.modules:
            durable.refuse((*args, getattr(function, "__self__", None)), kwargs)
        # `s.f` and `S.f` are one function, but `s.f` takes one argument less.
        method = function if isinstance(function, MethodType) else None
        try:
            return self._run[function] if method is None else self._methods[_class_of(method)][method.__func__]
        except (KeyError, TypeError):
            pass
        from onceward.claim.handler import handler_of  # as above

        handler = handler_of(function)
        if handler.is_async and not is_async:
            raise TypeError(
                f"{handler.name}() is a coroutine function: await once.run_async(...) instead of once.run(...)"
            )
        guard = self._build(function, handler, self.defaults, None, lasting=False, keeps=True)
        try:
            if method is None:
                self._run[function] = guard
            else:
                self._methods.setdefault(_class_of(method), WeakKeyDictionary())[method.__func__] = guard
        except TypeError:
            pass  # without weak references, the object is examined each time
        return guard

    def for_flush(self, function: Callable[..., object], name: str | None, options: Options) -> "Guard":
        """Return the guard of keys that ``function`` handles without a recorded result."""
        space = self._name_of(function, name)
        return self._guard(self.policy(options), space)

    def for_keys(
        self,
        name: str | None,
        options: Options,
        *,
        no_skip: str,
        default: str = CLAIM_NAME,
        heartbeat: bool = True,
        codec: "Codec | None" = None,
    ) -> "Guard":
        """Return the guard of keys that are claimed without a function of their own.

        Args:
            name: the namespace of the keys; None is the factory's, or else ``default``.
            options: see :class:`onceward.Policy`.
            no_skip: why ``on_busy="skip"`` is not possible.
            default: as above.
            heartbeat: False to renew no claims.
            codec: how results are stored; None is each by its own type.

        Raises:
            ValueError, TypeError: an option is not valid, or ``on_busy="skip"``.
        """
        # A guard without a cache keeps nothing of its calls, so that all can share it.
        plain = not options and codec is None and not self.defaults.cache and (name is None or type(name) is str)
        if plain and (guard := self._keyed.get((name, default, heartbeat))) is not None:
            return guard
        policy = self.policy(options)
        if policy.on_busy == "skip":
            raise ValueError(f'on_busy="skip" is for functions: {no_skip}, so catch Busy instead')
        if not heartbeat:
            policy = policy._replace(heartbeat=0)
        space = (self.name or default) if name is None else checked_name(name)
        guard = self._guard(policy, space, codec)
        if plain and len(self._keyed) < _NAMES:
            self._keyed[name, default, heartbeat] = guard
        return guard

    def class_check(
        self, name: str | None, guard: "Guard", function: Callable[..., object]
    ) -> Callable[[tuple[object, ...]], None] | None:
        """Return a check that refuses a method whose keys two classes would share by accident, or None."""
        if name is not None or guard.name == self.name:
            return None
        return self._namesakes[0].class_check(guard.name, function)

    def _build(
        self,
        function: Callable[..., object],
        handler: "Handler",
        policy: Policy,
        name: str | None,
        *,
        lasting: bool = True,
        keeps: bool = False,
    ) -> "Guard":
        from onceward.results.codec import Codec  # as above

        codec = Codec(handler.annotation)
        space = self._name_of(function, name, lasting=lasting)
        inputs = None
        if policy.keep_input and keeps:
            if isinstance(function, partial) or "<lambda>" in getattr(function, "__qualname__", ""):
                raise TypeError(
                    f"{function!r}: keep_input=True needs a function with a name of its own, by which a completer finds it again. "
                    "Give a function made with def, not a lambda or a partial"
                )
            from onceward.claim.inputs import InputCodec  # as above

            inputs = InputCodec(function, handler.name or space, handler.claim, policy.seal)
        return self._guard(policy, space, codec, handler.parameter, inputs)

    def _guard(
        self,
        policy: Policy,
        name: str,
        codec: "Codec | None" = None,
        parameter: "ClaimParameter | None" = None,
        inputs: "InputCodec | None" = None,
    ) -> "Guard":
        from onceward.claim.guard import Guard  # as above, with all that a claim needs

        if policy.keep_input and inputs is None:
            raise ValueError(
                "keep_input=True is for functions that you decorate with once(...) or call by once.run(...): this "
                "guard has no call whose arguments it could keep"
            )
        return Guard(self.store, policy, self.clock, codec, parameter, self.observers, inputs, name=name)

    def _name_of(self, function: Callable[..., object], name: str | None, *, lasting: bool = True) -> str:
        """Return the namespace of a function's keys; raises ValueError when it has none of its own."""
        if name is not None:
            return checked_name(name)
        if self.name is not None:
            return self.name
        own = checked_name(function_name(function))
        self._check_namesakes(own, function, lasting=lasting)
        return own

    def _check_namesakes(self, name: str, function: Callable[..., object], *, lasting: bool = True) -> None:
        if not self._namesakes:
            from onceward.keys.namesakes import Namesakes  # loaded with the first guard that needs it

            self._namesakes.append(Namesakes(self.store, self.store.url))
        self._namesakes[0].check(name, function, lasting=lasting)


FACTORIES: Final[WeakSet[GuardFactory]] = WeakSet()  # those of this process, for onceward.testing


def _unpickled(
    place: "StorePlace", clock: Clock, name: str | None, policy: Policy, observers: "tuple[Observer, ...]"
) -> GuardFactory:
    """Return a factory that another process has pickled."""
    from onceward.stores.pickling import open_place

    store, is_first = open_place(place)
    factory = GuardFactory(store, clock, name, policy, Observers(observers) if observers else UNOBSERVED, place.url)
    if is_first:
        factory.watch_store()
    return factory


def policy_of(defaults: Policy, options: Options) -> Policy:
    """Return ``defaults``, changed by ``options``.

    Raises:
        ValueError, TypeError: an option is unknown or not valid, or two contradict each other.
    """
    unknown = options.keys() - set(Policy._fields)
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(Policy._fields)}")
    return defaults._replace(**options).checked()


def _class_of(method: MethodType) -> type:
    owner = method.__self__
    return owner if isinstance(owner, type) else type(owner)


def refuse_guarded(function: Callable[..., object]) -> None:
    """Raise TypeError when ``function`` is already decorated."""
    if hasattr(function, "key_of"):
        raise TypeError(
            f"{getattr(function, '__qualname__', function)} is guarded already: give the function without its decorator"
        )
