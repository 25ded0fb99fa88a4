"""The pages about migrations. That of Django: its settings, its handlers and its tests run in the example's project."""

import os

from sqlalchemy import create_engine, inspect

from printed.pages import blocks, run
from web.django_shops import Shop, database_of

SETTINGS = "from shop.settings import *\nINSTALLED_APPS.remove('onceward.django')\n"


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
    shop.manage("migrate", "-v0")
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
    page = run("docs/how-to/deploy.md", {}, title="A ledger in your own migrations")
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    page["Base"].metadata.create_all(engine)
    assert "onceward" in inspect(engine).get_table_names()
    engine.dispose()
