"""Celery: tasks that take effect once, although brokers and retries deliver them again.

- ``guarding`` has the decorator under ``@app.task``, and the class for ``base=``.
- ``ends`` publishes what must come again.
- ``doctor`` says which settings of an application lose tasks.
"""

from onceward.celery.guarding import OnceTask, exactly

__all__ = ["OnceTask", "exactly"]
