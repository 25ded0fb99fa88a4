"""PostgreSQL decides about random records as the protocol does."""

import psycopg

from random_records import COLUMNS, cases, check, query


def test_postgresql_decides_as_the_protocol_does(postgres):
    made = cases(8_000, seed=4)
    with psycopg.connect(postgres.url) as connection:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        connection.execute(f"CREATE TEMPORARY TABLE cases ({columns})")
        with connection.cursor() as cursor, cursor.copy(f"COPY cases ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for number, case in enumerate(made):
                row = case.row | {"n": number}
                copy.write_row([row.get(name) for name in COLUMNS])
        check(made, connection.execute(query()).fetchall())
