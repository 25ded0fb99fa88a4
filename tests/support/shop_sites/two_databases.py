"""The example's settings, with the ledger in a second database."""

from shop.settings import *  # noqa: F403
from shop.settings import DATABASES, place

DATABASES["ledger"] = {**DATABASES["default"], "NAME": f"{place.path}.ledger"}
ONCEWARD = {"DATABASE": "ledger"}
