"""The pages about migrations. That of Django: its settings, its handlers and its tests run in the example's project."""

import os
from types import SimpleNamespace

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, inspect

from onceward import Once
from printed.pages import blocks, run
from web.django_shops import Shop, database_of

SETTINGS = "from shop.settings import *\nINSTALLED_APPS.remove('onceward.django')\n"


def console(*names):
    """Return the lines of blocks of the shell on the page of Django."""
    shown = [block.text for block in blocks("docs/how-to/django.md") if block.said in names]
    return "".join(shown).splitlines()


def test_the_page_runs(tmp_path):
    texts = {block.title: block.text for block in blocks("docs/how-to/django.md") if block.title is not None}
    assert texts.keys() == {"settings.py", "orders.py", "tests.py"}
    (tmp_path / "page_settings.py").write_text(SETTINGS + texts["settings.py"])
    (tmp_path / "orders.py").write_text(texts["orders.py"])
    (tmp_path / "test_page.py").write_text(texts["tests.py"])
    shop = Shop(database_of("sqlite", tmp_path), "page_settings")
    shop.environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    told = shop.manage("test", "--noinput", "test_page")
    assert "Ran 2 tests" in told
    assert "OK" in told
    commands = [line.split()[3:] for line in console("install", "commands") if line.startswith("$ python manage.py ")]
    shop.manage(*commands.pop(0), "-v0")
    shop.run("from onceward.django import once; once.acquire('evt_1', name='shop.paid').park('no such card')")
    shown = [shop.manage(*command) for command in commands]
    assert ["no such card" in text for text in shown] == [True, True, False]
    answered = shop.run(
        """
        from django.contrib.auth.models import User
        from django.test import RequestFactory
        from orders import create, once

        request = RequestFactory().post("/orders", headers={"Idempotency-Key": '"k"'})
        request.user = User.objects.create_user("ada")
        print(create(request).content, create(request).content, once.policy.lease)
        """
    )
    assert answered == """b'{"order": 1}' b'{"order": 1}' 60\n"""


def test_the_page_of_sqlalchemy_declares_the_ledger(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    once = Once(f"sqlite:///{tmp_path}/shop.db")
    once.using(name="n").run("k", int)
    once.close()
    with engine.connect() as connection:
        made = []
        configure = lambda **given: made.append(MigrationContext.configure(connection, opts=given))
        context = SimpleNamespace(configure=configure)
        names = {"context": context, "connection": connection, "target_metadata": MetaData()}
        page = run("docs/how-to/deploy.md", names, title="A ledger in your own migrations")
        assert compare_metadata(made[0], MetaData()) == []
        assert compare_metadata(MigrationContext.configure(connection), MetaData()) != []
    page["Base"].metadata.create_all(engine)
    assert "onceward" in inspect(engine).get_table_names()
    engine.dispose()
