"""RabbitMQ of Debian for tests: a node without plugins, and its epmd, which only this run uses."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from servers.needs import free_port, listens, missing
from servers.orphans import watched
from servers.server import Server

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # that in /usr/sbin changes the user once more
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
# One scheduler, which does not spin; the tests' machine has other work. Counts of quorum queues are told twice a second.
_ERLANG = "-start_epmd false -noinput +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -rabbit quorum_tick_interval 500"


class Rabbitmq(Server):
    """A running node with the user guest; what it has stored survives :meth:`kill`."""

    owner = "rabbitmq"
    _tries = 12  # four seconds, and minutes on a machine that does much else

    def __init__(self, **settings: object) -> None:
        if not PROGRAM.exists():
            missing("rabbitmq-server is not installed: RUNLEVEL=1 apt-get install rabbitmq-server")
        super().__init__()
        distribution, epmd = free_port(), free_port()
        config, plugins = self._scratch / "rabbitmq.conf", self._scratch / "enabled_plugins"
        known = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "log.console": "true", "log.file": "false"}
        # A disk that is nearly full blocks publishers: the tests' machine decides that by itself.
        known |= {"loopback_users": "none", "disk_free_limit.absolute": "50MB"}
        known |= {name.replace("_", "."): value for name, value in settings.items()}
        config.write_text("".join(f"{name} = {value}\n" for name, value in known.items()))
        plugins.write_text("[].\n")
        for path in (config, plugins):
            path.chmod(0o644)
        self._environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._scratch),  # for the cookie
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_ALLOW_INPUT": "1",  # the process is the node, and no shell that starts it
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_LOG_BASE": str(self._scratch),
            "RABBITMQ_MNESIA_BASE": str(self._scratch / "data"),
            "RABBITMQ_NODENAME": f"onceward-{self.port}@localhost",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_ERLANG} -kernel inet_dist_use_interface {{127,0,0,1}}",
        }
        self._control.write_text(json.dumps({"env": self._environment, **self._user}))
        # epmd leads a process group that the node joins, so that the run stops both.
        command = ["epmd", "-port", str(epmd), "-address", "127.0.0.1"]
        self._epmd = watched(self._popen(command, process_group=0), scratch=self._scratch)
        assert listens(epmd, self._epmd), "epmd did not start"
        self.start()

    def _command(self):
        return [PROGRAM]

    def _begin(self):
        return self._popen(self._command(), process_group=self._epmd.pid)

    @property
    def pid(self) -> int:
        """That of the group: epmd's."""
        return self._epmd.pid

    @property
    def _control(self) -> Path:
        """How ``rabbitmqctl`` is run, for each process of the tests."""
        return self._scratch / "control.json"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def stop(self) -> None:
        for process in (self._process, self._epmd):
            process.kill()
            process.wait(60)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def control(self, *command: object) -> str:
        """Return what ``rabbitmqctl`` says; it takes a second."""
        how = {"cwd": self._scratch, "timeout": 120, **json.loads(self._control.read_text())}
        command = [CONTROL, "-q", *map(str, command)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, **how)
        return done.stdout

    def held(self) -> dict[str, int]:
        """Return how many messages each queue has, those that a consumer holds included; half a second old."""
        told = json.loads(self.control("list_queues", "name", "messages", "--formatter", "json"))
        return {queue["name"]: queue["messages"] for queue in told}

    def do(self, work):
        """Return what ``work``, a coroutine function of a channel with publisher confirms, returns."""
        import aio_pika

        async def connected():
            async with await aio_pika.connect(self.url) as connection, await connection.channel() as channel:
                return await work(channel)

        return asyncio.run(connected())

    def queue(self, name: str, kind: str = "quorum", **arguments: object) -> str:
        """Declare a durable queue; ``x_delivery_limit=5`` is its argument x-delivery-limit."""
        told = {name.replace("_", "-"): value for name, value in arguments.items()} | {"x-queue-type": kind}

        async def declare(channel):
            await channel.declare_queue(name, durable=True, arguments=told)

        from aio_pika.exceptions import AMQPConnectionError

        for left in (2, 1, 0):  # on a machine that does much else, a quorum queue can be an internal error of RabbitMQ
            try:
                self.do(declare)
            except AMQPConnectionError:
                if not left:
                    raise
                time.sleep(1.0)
            else:
                break
        return name

    def publish(self, queue: str, *bodies: object, headers: Mapping[str, object] | None = None, **more: object) -> None:
        """Send messages to a queue, as JSON unless they are bytes, and wait until it has them."""
        import aio_pika

        async def send(channel):
            for body in bodies:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                message = aio_pika.Message(content, headers=dict(headers or {}), delivery_mode=2, **more)
                await channel.default_exchange.publish(message, queue)

        self.do(send)

    def ready(self, queue: str) -> int:
        """Return how many messages wait in a queue; 0 if there is none."""
        from aio_pika.exceptions import ChannelNotFoundEntity

        async def look(channel):
            try:
                return (await channel.declare_queue(queue, passive=True)).declaration_result.message_count
            except ChannelNotFoundEntity:
                return 0

        return self.do(look)

    def take(self, queue: str) -> list:
        """Take the messages that wait in a queue out of it."""

        async def get(channel):
            found, there = [], await channel.get_queue(queue)
            while (message := await there.get(fail=False, no_ack=True)) is not None:
                found.append(message)
            return found

        return self.do(get)
