#!/usr/bin/env python3
"""An order and its job by Python's own sqlite3, in one transaction.

The database is one that leasehold has made, with a table of orders in it; the program in sqlx/
makes it, and runs the job afterwards.
"""

import json
import pathlib
import sqlite3
import sys


class NotPaid(Exception):
    pass


def order(conn, item, paid):
    """Both rows land with the commit, and an exception leaves neither."""
    with conn:
        conn.execute("BEGIN IMMEDIATE")
        order = conn.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        conn.execute(
            "INSERT INTO leasehold_enqueue (kind, payload, subject_id) VALUES ('ship', ?, ?)",
            (json.dumps({"order": order}), str(order)),
        )
        if not paid:
            raise NotPaid(item)


def main(path):
    # rw: a file that leasehold has not made is an error, and not made here.
    uri = pathlib.Path(path).absolute().as_uri() + "?mode=rw"
    conn = sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)
    order(conn, "a chair", paid=True)
    try:
        order(conn, "a sofa", paid=False)
    except NotPaid as item:
        print(f"not paid: {item}")
    try:
        conn.execute("INSERT INTO leasehold_enqueue (kind) VALUES ('No Such Name')")
    except sqlite3.IntegrityError as error:
        print(f"refused: {error}")
    jobs = "SELECT count(*) FROM leasehold_jobs WHERE status = 'pending'"
    print(f"jobs that wait: {conn.execute(jobs).fetchone()[0]}")
    conn.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: enqueue.py DATABASE")
    main(sys.argv[1])
