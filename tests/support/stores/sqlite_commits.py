"""A connection of SQLite that does something at its COMMIT."""


class Commits:
    """A connection that does something at its COMMIT."""

    def __init__(self, connection, at_commit):
        self._connection, self._at_commit = connection, at_commit

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def __setattr__(self, name, value):
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._connection, name, value)

    def execute(self, sql, *parameters):
        if sql == "COMMIT" and self._at_commit:
            at_commit, self._at_commit = self._at_commit, None
            at_commit(self._connection)
        return self._connection.execute(sql, *parameters)


def commits_and_raises(error):
    def at_commit(connection):
        connection.execute("COMMIT")
        raise error

    return at_commit


def rolls_back_and_raises(error):
    def at_commit(connection):
        connection.execute("ROLLBACK")
        raise error

    return at_commit


def raises(error):
    def at_commit(_):
        raise error

    return at_commit
