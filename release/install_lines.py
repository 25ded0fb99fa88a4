"""Tries what the pages and the extras say can be installed, each in an environment of its own.

Each extra is installed twice: with the newest versions that it allows, and with the lowest. Each install line of README.md and docs/
is installed as it stands, with the newest versions. Then the programs of release/trials run there.

Run: python release/install_lines.py [WORD ...]    only what has one of the words in its name
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIALS = ROOT / "release" / "trials"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
AWAY = "127.0.0.1:1"
# What else an extra needs, and what runs with it: a program of release/trials and its arguments.
EXTRAS: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "cli": ("", [("cli",)]),
    "dynamodb": ("", [("away", f"dynamodb://orders?region=eu-west-1&endpoint=http://{AWAY}")]),
    "postgres": ("psycopg[binary]", [("away", f"postgresql://user@{AWAY}/shop?timeout=1")]),
    "redis": (
        "",
        [("away", f"redis://{AWAY}/0"), ("workers", "redis_streams", "RedisStreamsWorker", f"redis://{AWAY}/0")],
    ),
    "rabbitmq": ("", [("workers", "rabbitmq", "RabbitWorker", f"amqp://{AWAY}/")]),
    "mysql": ("", [("away", f"mysql://user@{AWAY}/shop?timeout=1")]),
    "kafka": ("", [("workers", "kafka", "KafkaWorker", AWAY)]),
    "nats": ("", [("workers", "nats", "NatsWorker", f"nats://{AWAY}")]),
    "celery": ("redis", [("tasks_celery",)]),
    "dramatiq": ("", [("tasks_dramatiq",)]),
    "procrastinate": ("", [("tasks_procrastinate",)]),
    "taskiq": ("", [("tasks_taskiq",)]),
    "faststream": ("faststream[nats]", [("messages_faststream",)]),
    "otel": ("", [("traces",)]),
    "prometheus": ("", [("prometheus",)]),
    "dashboard": ("", [("served", "dashboard")]),
    "service": ("", [("served", "service")]),
    "proxy": ("", [("served", "proxy")]),
    "pipelines": ("onceward[cli]", [("pipelines",)]),
}
OURS = {"docs", "release", "dev"}  # extras for the development of onceward
LINE = re.compile(r"pip install ([^`#|\n]+)")
OURSELVES = re.compile(r"onceward(\[[\w,]+\])?").fullmatch


def main() -> int:
    """Try all, print a line for each, and return the exit status."""
    words = sys.argv[1:]
    missing = PROJECT["optional-dependencies"].keys() - EXTRAS.keys() - OURS
    if missing:
        sys.exit(f"give these extras a trial in {Path(__file__).name}: {', '.join(sorted(missing))}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = _wheel(Path(folder))
        for name, wanted, lowest, programs in _trials():
            if words and not any(word in name for word in words):
                continue
            problem = _tried(Path(folder), wheel, wanted, lowest, programs)
            failed += problem is not None
            print(f"{'FAILED' if problem else 'ok    '} {name}", flush=True)
            if problem:
                print(problem, flush=True)
    return failed != 0


def _trials() -> "list[tuple[str, list[str], list[str], list[tuple[str, ...]]]]":
    """Return for each trial its name, what is installed, what holds its versions low, and what runs."""
    trials = []
    for extra, (beside, programs) in EXTRAS.items():
        wanted = [f"onceward[{extra}]", *([beside] if beside else [])]
        own = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
        if beside.startswith("onceward["):
            own += PROJECT["optional-dependencies"][beside[len("onceward[") : -1]]
        lowest = [re.sub(r"\[.*\]|,.*", "", one).replace(">=", "==") for one in own]
        trials += [
            (f"{extra}, newest", wanted, [], [("core",), *programs]),
            (f"{extra}, lowest", wanted, lowest, [("core",), *programs]),
        ]
    lines = set()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        named = (line.replace("'", "").split() for line in LINE.findall(page.read_text(encoding="utf-8")))
        lines |= {tuple(one) for one in named if any(map(OURSELVES, one)) and not any(part[0] in "-$" for part in one)}
    trials += [(f"pip install {' '.join(line)}", list(line), [], [("core",)]) for line in sorted(lines)]
    return trials


def _wheel(folder: Path) -> Path:
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _tried(
    folder: Path, wheel: Path, wanted: list[str], lowest: list[str], programs: list[tuple[str, ...]]
) -> str | None:
    """Install and run in a new environment; return what went wrong."""
    place = Path(tempfile.mkdtemp(dir=folder))
    venv.create(place / "venv", with_pip=True)
    python = str(place / "venv" / "bin" / "python")
    asked = [f"{wheel}{found[1] or ''}" if (found := OURSELVES(one)) else one for one in wanted]
    (place / "lowest.txt").write_text("\n".join(lowest))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(place / "lowest.txt")]
    try:
        _run([*pip, *asked])
        _run([python, "-m", "pip", "check", "--disable-pip-version-check"])
        for program, *arguments in programs:
            (place / program).mkdir(exist_ok=True)
            _run([python, str(TRIALS / f"{program}.py"), *arguments], place / program)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}\n{error.stdout[-3000:]}"
    except subprocess.TimeoutExpired as error:
        return str(error)
    return None


def _run(command: list[str], place: Path | None = None) -> None:
    subprocess.run(
        command, cwd=place, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )


if __name__ == "__main__":
    sys.exit(main())
