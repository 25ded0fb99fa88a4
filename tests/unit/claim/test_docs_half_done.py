"""The examples of docs/how-to/runbook.md about half-done work run as they are printed."""

from types import SimpleNamespace

from printed.pages import run


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = []
    space = {
        "bank": SimpleNamespace(pay=lambda key, total: made.append(total) or {"id": f"ch_{total}"}),
        "send_mail": lambda order: made.append("mail"),
    }
    run("docs/how-to/runbook.md", space, title="Finish half-done work")
    assert capsys.readouterr().out == "Sweep(completed=0, failed=0, parked=0, taken=0, left=0)\n"
    assert made == [1250, "mail"]
    space["once"].close()
