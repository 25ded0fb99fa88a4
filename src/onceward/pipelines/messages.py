"""A message on its way through a pipeline."""

from typing import Any, NamedTuple


class PipelineMessage(NamedTuple):
    """A message as a step sees it. Steps make a new one, and never change the data in place.

    Attributes:
        data: its data as it is now: what JSON can hold, or bytes.
        meta: where it comes from: ``source``, ``id``, ``key``, ``group``, ``destination`` and ``raw`` of its delivery.
        at: its numbers in the lists that it was taken from (``each``); it is part of the names of its steps.
    """

    data: Any
    meta: dict[str, object]
    at: tuple[int, ...] = ()

    def with_data(self, data: object) -> "PipelineMessage":
        """Return it with other data."""
        return self._replace(data=data)

    def with_field(self, path: str, value: object) -> "PipelineMessage":
        """Return it with a value in a field, such as ``payment.receipt``. Objects on the way are made.

        Raises:
            ValueError: something on the way is no object.
        """
        return self._replace(data=_put(self.data, path.split("."), value, path))

    def without_field(self, path: str) -> "PipelineMessage":
        """Return it without a field. A field that it does not have is ignored."""
        return self._replace(data=_cut(self.data, path.split(".")))


def _put(data: object, names: list[str], value: object, path: str) -> object:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ValueError(f"{path} cannot be put into {type(data).__name__}: only an object has fields")
    name, *rest = names
    return {**data, name: _put(data.get(name), rest, value, path) if rest else value}


def _cut(data: object, names: list[str]) -> object:
    name, *rest = names
    if not isinstance(data, dict) or name not in data:
        return data
    if rest:
        return {**data, name: _cut(data[name], rest)}
    return {other: value for other, value in data.items() if other != name}
