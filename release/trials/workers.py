"""A worker of each broker whose client is installed: it says that the server is away. The arguments are module, class and URL."""

import importlib
import sys

from onceward import Once

module, name, url = sys.argv[1:]
worker = getattr(importlib.import_module(f"onceward.{module}"), name)
place = {"servers": url} if module == "kafka" else {"url": url}
once = Once("sqlite:///workers.db", name="trial")
try:
    worker(once, "orders", print, key="order.id", **place).run(until_empty=True)
except Exception as error:
    assert not isinstance(error, (ImportError, TypeError, AttributeError)), error
    print(f"{type(error).__name__}: {error}"[:200])
else:
    sys.exit("a server that is away has answered")
