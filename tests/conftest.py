"""What several tests need from the machine."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fixtures import closing_fixture
from onceward.aws.sqs import queue
from onceward.outbox import sender as senders
from schedule import ASKED, NIGHTLY, Scheduling, is_of, left_out, number_of, rank
from servers.dynoxide import Dynoxide
from servers.kafka import Kafka
from servers.ministack import Ministack
from servers.mysql import Mariadb
from servers.nats import Nats
from servers.needs import missing, numbers
from servers.orphans import begin_run
from servers.postgres import Postgres, Postgres18
from servers.proxy import Proxy
from servers.rabbitmq import Rabbitmq
from servers.redis import MovedRedis, Redis
from servers.shared import shared, stop
from servers.wrong_clocks import library, wrong_clock
from stores.ledgers import LEDGERS

collect_ignore = ["support"]  # a project's own tests are there, which `manage.py test` runs
pytest.register_assert_rewrite("stores.transaction_cases", "stores.lost_cases", "stores.dynamodb_desk")

# `nohup make test &` and some CI runners start us with signals ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_ignored, signal.SIG_DFL)

# Some containers turn compiled files off. Then each of the hundreds of processes of the tests compiles everything again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collection makes a million things that stay, and looking for garbage among them takes a third of its time.
gc.disable()


@pytest.fixture(autouse=True)
def own_sender():
    """Each test has a sender of its own: what one leaves unsent is not another's."""
    senders.SENDER = senders.Sender()


@pytest.fixture
def faketime():
    """What starts a process with a wrong time of day: called with an offset such as ``-1h``, it gives the command's beginning."""
    if library() is None:
        missing("libfaketime is not installed: apt-get install faketime")
    return lambda offset: ["env", *(f"{name}={value}" for name, value in wrong_clock(offset).items())]


_NUMBERS = numbers()
SHARED = {
    "dynoxide": Dynoxide,  # DynamoDB, with its tables in memory
    "ministack": Ministack,  # the rest of AWS: queues, streams, functions and what connects them
    "postgres15": Postgres,
    "mariadb": Mariadb,
    "redis": Redis,
    "nats": Nats,
    "rabbitmq": Rabbitmq,
    "kafka": Kafka,
}  # the servers of a run, which tests share; what they make there has names of their own
SLOW = {*SHARED, "postgres", "moved_redis", "faketime", "start"}  # fixtures that are servers or processes
SESSION = pytest.StashKey[pytest.Session]()
RUN = pytest.StashKey[Path]()  # a folder of the run, which tells its workers of its servers


def pytest_sessionstart(session):
    session.config.stash[SESSION] = session


def pytest_configure(config):
    worker = getattr(config, "workerinput", None)
    if worker is None:
        begin_run()
    config.stash[RUN] = Path(worker["run"] if worker else tempfile.mkdtemp(prefix="onceward-tests-"))


# Examples are no measure of time on a machine that does much else.
settings.register_profile(
    "busy", deadline=None, max_examples=300 if NIGHTLY else 20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")
POSTGRES = {"15": Postgres, "18": Postgres18} if NIGHTLY else {"15": Postgres}


def pytest_collection_modifyitems(config, items):
    for item in items:
        if not SLOW.isdisjoint(item.fixturenames):
            item.add_marker("slow")
    if not NIGHTLY and (ASKED == "0" or not any(".py" in argument for argument in config.args)):
        left = left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A coroutine function is a test, too, on an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def limited():
        async with asyncio.timeout(600):  # seconds, after which it hangs
            await test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})

    asyncio.run(limited())
    return True


def pytest_collection_finish():
    """Keep what was imported out of every later collection: tests that collect garbage often take a tenth of the time."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path, config):
    """Leave the files to the other processes that those run."""
    number = getattr(config, "workerinput", {}).get("number")
    if number is None or collection_path.suffix != ".py":
        return None
    return None if is_of(number, collection_path.relative_to(config.rootpath).as_posix()) else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadgroup":
        return None
    return Scheduling(config, log, is_shared=_is_shared(config), session=config.stash[SESSION])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["run"] = str(node.config.stash[RUN])
    if _is_shared(node.config):
        node.workerinput["number"] = number_of(node)


def _is_shared(config):
    """Return whether all tests run, in processes enough to collect only their own."""
    return (
        config.getvalue("dist") == "loadgroup"
        and config.args == config.getini("testpaths")
        and len(config.option.tx) > 2
    )


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        stop(config.stash[RUN])


@pytest.fixture(scope="session")
def run_folder(pytestconfig):
    """The folder of this run, which tells its workers of its servers."""
    return pytestconfig.stash[RUN]


def _fixture_of(kind):
    @pytest.fixture(scope="session")
    def server(run_folder):
        return shared(kind, run_folder)

    return server


globals().update({name: _fixture_of(kind) for name, kind in SHARED.items()})


@pytest.fixture(scope="session", params=POSTGRES.values(), ids=POSTGRES)
def postgres(request, run_folder):
    """A PostgreSQL server, shared as well. `make nightly` runs each test on two versions; ``postgres15`` is for the others."""
    return shared(request.param, run_folder)


@pytest.fixture
def database(mariadb):
    """The URL of an empty database of that server."""
    return mariadb.database(f"ledger_{uuid.uuid4().hex}")


@pytest.fixture
def schema(postgres):
    """The URL of an empty ledger in a schema of its own on that server."""
    return f"{postgres.url}?schema=ledger_{next(_NUMBERS)}"


@pytest.fixture
def moved(postgres):
    """The URL of an empty ledger with a clock of its own, and what moves that by some seconds."""
    schema = f"ledger_{next(_NUMBERS)}"
    url = f"{postgres.url}?schema={schema}&options=-csearch_path%3D{schema},pg_catalog"
    return url, postgres.own_clock(schema)


@pytest.fixture
def redis_url(redis):
    """The URL of an empty ledger on that server."""
    return f"{redis.url}?prefix=ledger-{next(_NUMBERS)}"


@pytest.fixture
def topic(kafka):
    """The name of a topic of one partition on that broker."""
    name = f"orders-{next(_NUMBERS)}"
    kafka.make(name)
    return name


@pytest.fixture(scope="session")
def moved_redis(pytestconfig):
    """A server of this process's own, whose clock its tests move; ``fresh()`` gives the URL of an empty ledger."""
    if library() is None:
        missing("libfaketime is not installed: apt-get install faketime")
    server = MovedRedis()
    yield server
    server.stop()


_proxy = closing_fixture(lambda dynoxide: Proxy(dynoxide.port), scope="session")
_front = closing_fixture(lambda ministack: Proxy(ministack.port), scope="session")


@pytest.fixture
def front(_front, aws, monkeypatch):
    """A proxy in front of the queues, without faults; pauses between tries are short."""
    _front.clear()
    monkeypatch.setattr(queue, "_PAUSES", (0.01,) * 5)
    return _front


@pytest.fixture
def aws(monkeypatch):
    """Credentials of nobody, in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture
def proxy(_proxy, aws):
    """The proxy in front of that server, without faults."""
    _proxy.clear()
    return _proxy


@pytest.fixture
def table(dynoxide):
    """A fresh ledger table on that server."""
    return dynoxide.table(f"ledger-{next(_NUMBERS)}")


@pytest.fixture
def url(proxy, table):
    """The URL of a fresh ledger, through the proxy."""
    return f"dynamodb://{table}?endpoint={proxy.url}"


@pytest.fixture(params=LEDGERS)
def ledger(request, tmp_path):
    """A fresh ledger of each store in turn, by ``ledger.url``; see stores/ledgers.py for what a store gives to be among them."""
    return LEDGERS[request.param].fresh(request, tmp_path)


@pytest.fixture(autouse=True)
def _own_log():
    """A command that runs in the test's own process leaves the log as it was."""
    log = logging.getLogger("onceward")
    level, propagate, handlers = log.level, log.propagate, list(log.handlers)
    yield
    log.level, log.propagate, log.handlers[:] = level, propagate, handlers
    log.manager._clear_cache()


@pytest.fixture(autouse=True)
def _nothing_told():
    """Nobody is told of a test's outcomes later."""
    observing = sys.modules.get("observing")
    if observing is not None:
        observing.Noted.tell = staticmethod(lambda outcome: None)
