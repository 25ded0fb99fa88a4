"""Finding records of a DynamoDB table by status and age, or of a chain.

An optional index has what is not completed (``unfinished.py``). For all else DynamoDB reads the whole table, charges for it,
and returns what a filter lets through.
"""

from typing import Final

from onceward.core.comparisons import Clause, Comparison, Every, meets
from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.core.views import ANY
from onceward.stores.contract import NoIndex, Page
from onceward.stores.dynamodb import messages, unfinished
from onceward.stores.dynamodb.due import find_due
from onceward.stores.dynamodb.items import Item, Layout, number
from onceward.stores.dynamodb.reader import DynamoReader, token
from onceward.stores.dynamodb.requests import Body

_SCANNED: Final = 1000  # items that one page looks at, at most


def select(store: DynamoReader, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page. By an index it is in that one's order; else it is one request, of at most 1 MB, in DynamoDB's own order."""
    if isinstance(selection, DueWithin):
        return (yield from find_due(store, selection, after, limit))
    if isinstance(selection, ChainOf):
        return (yield from _chain(store, selection, after))
    prefix, criteria = selection
    if criteria == ANY:
        return (yield from store.read_page(store.requests.having(prefix), prefix, after, min(limit, _SCANNED)))
    if store.layout.lists_open and criteria.are_within(unfinished.STATUSES):
        return (yield from unfinished.find(store, criteria, prefix, after, limit))
    if store.layout.lists_open and criteria.are_about_messages:
        found = yield from messages.find(store, criteria, prefix, after, limit)
        if found is not None:
            return found
    yield from store.learn_time()
    now = store.clock.earliest()
    body = store.requests.having(prefix)
    if not store.layout.statuses:  # the items of other systems spell theirs in other ways
        body = filtered(body, criteria.clause, store.layout, now)
    page = yield from store.read_page(body, prefix, after, None)
    records = [record for record in page.records if meets(record, criteria.clause, now)]
    if len(records) > limit:
        records = records[:limit]
        return Page(records, token(store.layout.key(records[-1].key)), now, page.damaged)
    return page._replace(records=records, now=now)


def _chain(store: DynamoReader, chain: ChainOf, after: str | None) -> Steps[Page]:
    """Read one page, of at most 1 MB of items."""
    if not chain.scan:
        raise NoIndex(f"ledger {store.url}: DynamoDB has no index of chains")
    yield from store.learn_time()
    body = store.requests.having("")
    body = {
        "FilterExpression": f"{body['FilterExpression']} AND begins_with(#o, :o)",
        "ExpressionAttributeNames": body["ExpressionAttributeNames"] | {"#o": store.layout.names["origin"]},
        "ExpressionAttributeValues": body.get("ExpressionAttributeValues", {}) | {":o": {"S": beginning(chain.root)}},
    }
    return (yield from store.read_page(body, "", after, None))


def filtered(body: Body, clause: Clause, layout: Layout, now: float) -> Body:
    """Return a scan's filter, and ``clause`` with it."""
    names: dict[str, str] = {}
    values: Item = {}
    text = _printed(clause, layout, now, names, values)
    return {
        "FilterExpression": f"{body['FilterExpression']} AND {text}" if text else body["FilterExpression"],
        "ExpressionAttributeNames": body["ExpressionAttributeNames"] | {mark: name for name, mark in names.items()},
        "ExpressionAttributeValues": body.get("ExpressionAttributeValues", {}) | values,
    }


def _printed(clause: Clause, layout: Layout, now: float, names: dict[str, str], values: Item) -> str:
    if isinstance(clause, Comparison):
        mark = names.setdefault(layout.names[clause.field], f"#c{len(names)}")
        if clause.sign == "absent":
            return f"attribute_not_exists({mark})"
        value = f":c{len(values)}"
        values[value] = {"S": clause.value} if isinstance(clause.value, str) else {"N": number(now - clause.value)}
        return f"{mark} {clause.sign} {value}"
    terms = [_printed(term, layout, now, names, values) for term in clause.terms]
    word = " AND " if isinstance(clause, Every) else " OR "
    return terms[0] if len(terms) == 1 else f"({word.join(terms)})"  # DynamoDB refuses double parentheses
