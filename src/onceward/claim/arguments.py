"""Arguments that are wrong are refused where they are given, by their own names and with what to do instead."""


def check_hook(option: str, hook: object) -> None:
    """Raise TypeError when ``hook`` cannot be called as a plain function; a coroutine that nobody awaits is true, and no answer."""
    from inspect import iscoroutinefunction

    if not callable(hook):
        raise TypeError(f"{option}={hook!r}: give a callable")
    if iscoroutinefunction(hook) or iscoroutinefunction(type(hook).__call__):
        raise TypeError(f"{option}= is a coroutine function, and nobody would await it: give a plain one")


def check_flag(option: str, value: object) -> None:
    """Raise TypeError when ``value`` is neither True nor False: a text such as "no" is true."""
    if type(value) is not bool:
        raise TypeError(f"{option}={value!r}: give True or False")
