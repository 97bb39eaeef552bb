"""Where a ledger lives: an SQLite file or a PostgreSQL database. Rows in, rows out, one transaction at a time.

A transaction is alone with its data set from its first word to its last (SQLite: BEGIN IMMEDIATE; PostgreSQL: a lock on
the data set's row), and is on the disk when it ends: SQLite writes ahead with synchronous=FULL, PostgreSQL has
synchronous_commit on. There is one lock at a time, so nothing can wait in a circle. Nothing here knows what entries
mean: `dpfastmh.ledger` does, and believes none of it before it has checked the chain.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from dpfastmh.outputs import sync_folder

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    from sqlalchemy.pool import QueuePool
except ImportError:
    raise ValueError("a ledger needs SQLAlchemy: pip install 'dpfastmh[ledger]'") from None

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

PATIENCE = 60  # seconds to wait for other runs' transactions, which take milliseconds each
ONE: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "hide_parameters": True}
TABLES = sql.MetaData()
DATASETS = sql.Table(
    "dpfastmh_datasets",
    TABLES,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("secret", sql.Text, nullable=False),  # the key of the chain and of the table's fingerprint
    sql.Column("seq", sql.BigInteger, nullable=False),  # the last entry's number
    sql.Column("digest", sql.Text, nullable=False),  # and seal
    sqlite_with_rowid=False,
)
ENTRIES = sql.Table(
    "dpfastmh_entries",
    TABLES,
    sql.Column("dataset", sql.Text, primary_key=True),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("kind", sql.Text, nullable=False),
    sql.Column("at", sql.Text, nullable=False),
    sql.Column("body", sql.Text, nullable=False),
    sql.Column("digest", sql.Text, nullable=False),
    sqlite_with_rowid=False,
)


class LedgerError(ValueError):
    """What a ledger refuses, or why it cannot be used. One line: which, why, what to do."""


class Head(NamedTuple):
    """A data set's row: its key, and where its chain of entries ends."""

    secret: str
    seq: int
    digest: str


class Entry(NamedTuple):
    """A row of the chain, as it is stored."""

    seq: int
    kind: str
    at: str  # for people: nothing is ordered or decided by it
    body: str
    digest: str


class Transaction:
    """What can be done between BEGIN and COMMIT."""

    def __init__(self, connection: Connection, where: str) -> None:
        self._connection, self._where = connection, where

    def names(self) -> list[str]:
        """The data sets of this ledger."""
        return [str(name) for (name,) in self._connection.execute(sql.select(DATASETS.c.name))]

    def head(self, dataset: str) -> Head | None:
        """A data set's row, locked until the transaction ends."""
        wanted = sql.select(DATASETS.c.secret, DATASETS.c.seq, DATASETS.c.digest).where(DATASETS.c.name == dataset)
        row = self._connection.execute(wanted.with_for_update()).first()
        return None if row is None else Head(*row)

    def entries(self, dataset: str, after: int) -> list[Entry]:
        """The data set's entries with numbers above ``after``, in order."""
        table = ENTRIES.c
        wanted = sql.select(table.seq, table.kind, table.at, table.body, table.digest)
        wanted = wanted.where(table.dataset == dataset, table.seq > after).order_by(table.seq)
        return [Entry(*row) for row in self._connection.execute(wanted)]

    def start(self, dataset: str, secret: str, entry: Entry) -> None:
        """A new data set with its first entry."""
        row = {"name": dataset, "secret": secret, "seq": entry.seq, "digest": entry.digest}
        self._connection.execute(sql.insert(DATASETS).values(row))
        self._connection.execute(sql.insert(ENTRIES).values(dataset=dataset, **entry._asdict()))

    def append(self, dataset: str, entry: Entry) -> None:
        """One more entry, and the head that points to it."""
        self._connection.execute(sql.insert(ENTRIES).values(dataset=dataset, **entry._asdict()))
        moved = sql.update(DATASETS).where(DATASETS.c.name == dataset, DATASETS.c.seq == entry.seq - 1)
        if self._connection.execute(moved.values(seq=entry.seq, digest=entry.digest)).rowcount != 1:
            raise LedgerError(f"{self._where}: the ledger changed under a lock: nothing was written")

    def trouble(self) -> str:
        """What the database itself finds wrong with its file (SQLite); empty if nothing."""
        if self._connection.dialect.name != "sqlite":
            return ""
        found = [str(row[0]) for row in self._connection.exec_driver_sql("PRAGMA integrity_check(1)")]
        return "" if found == ["ok"] else " ".join(" ".join(found).split())[:200]


class Store:
    """A database by its URL, and one connection to it, which is kept (an SQLite log is then flushed once for each
    transaction) but never taken into another process."""

    def __init__(self, url: str) -> None:
        try:
            self._url = sql.make_url(url)
        except (ArgumentError, ValueError, TypeError):
            raise LedgerError(f"{_hidden(url)!r} is no ledger: give sqlite:///FILE or postgresql://...") from None
        kind = self._url.get_backend_name()
        if kind in ("postgresql", "postgres"):
            self.file: Path | None = None
            self.where = self._url.render_as_string(hide_password=True)
            self._engine = self._postgresql()
        elif kind == "sqlite" and self._url.database not in (None, "", ":memory:") and not self._url.query:
            self.file = Path(str(self._url.database))
            self.where = str(self.file)
            self._engine = _sqlite(self.file)
        else:
            raise LedgerError(f"{_hidden(url)!r} is no ledger: give sqlite:///FILE or postgresql://...")
        self._process = os.getpid()
        weakref.finalize(self, _let_go, self._engine, self._process)

    def _postgresql(self) -> sql.Engine:
        try:
            return sql.create_engine(
                self._url.set(drivername="postgresql+psycopg"),
                connect_args={"connect_timeout": 10},
                pool_pre_ping=True,  # a server that was restarted meanwhile is asked anew
                **ONE,
            )
        except ImportError:
            raise LedgerError("a ledger in PostgreSQL needs psycopg: pip install 'dpfastmh[ledger]'") from None

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything inside happens, for good, or nothing does. Waits for other transactions on the same data."""
        if self._process != os.getpid():
            self._engine.dispose(close=False)  # its connection is the parent's
            self._process = os.getpid()
        if self.file is not None:
            _check_file(self.file)
        with self._one_line(), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
                connection.exec_driver_sql(f"SET LOCAL lock_timeout TO '{PATIENCE}s'")
            yield Transaction(connection, self.where)

    def create(self, dataset: str, secret: str, entry: Entry) -> None:
        """A new data set; the file or the tables are made if they are not there yet."""
        if self.file is not None and not self.file.exists() and self._create_file(dataset, secret, entry):
            return
        with self._one_line():
            if self.file is None:
                with suppress(sql.exc.IntegrityError, sql.exc.ProgrammingError):  # somebody made them this moment
                    TABLES.create_all(self._engine)
            with self.transaction() as transaction:
                if dataset in transaction.names():
                    raise LedgerError(f"{self.where} has a data set {dataset!r} already: its budget was fixed then")
                transaction.start(dataset, secret, entry)

    def _create_file(self, dataset: str, secret: str, entry: Entry) -> bool:
        """The whole file beside its place, then put there under its name at once; False if somebody was faster."""
        assert self.file is not None
        building = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}.part")
        try:
            os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            engine = _sqlite(building)
            with self._one_line():
                with engine.connect() as connection:
                    mode = connection.connection.cursor().execute("PRAGMA journal_mode=WAL").fetchone()[0]
                    if mode != "wal":
                        raise LedgerError(f"{self.where}: this file system cannot hold a ledger (no write-ahead log)")
                with engine.begin() as connection:
                    TABLES.create_all(connection)
                    Transaction(connection, self.where).start(dataset, secret, entry)
            engine.dispose()  # the last connection to close puts the log into the file
            try:
                os.link(building, self.file)  # unlike a rename it never replaces a ledger that came meanwhile
            except FileExistsError:
                return False
            sync_folder(self.file.absolute().parent)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise LedgerError(f"{self.where} cannot be created ({reason}): nothing was left behind") from None
        finally:
            for left in ("", "-wal", "-shm", "-journal"):
                building.with_name(building.name + left).unlink(missing_ok=True)
        return True

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """The database's own words, but one line of them."""
        try:
            yield
        except (DBAPIError, sqlite3.Error, UnicodeError, OverflowError) as error:  # a damaged file has it all
            said = " ".join(str(getattr(error, "orig", error)).split())[:200]
            if "no such table" in said or "does not exist" in said:
                advice = "make one with dpfastmh ledger create"
                raise LedgerError(f"{self.where} is not a ledger ({said}): {advice}") from None
            if "locked" in said or "lock timeout" in said:
                raise LedgerError(f"{self.where} was busy for {PATIENCE} seconds ({said}): try again") from None
            raise LedgerError(f"{self.where} cannot be used ({said}): nothing was written") from None
        except SQLAlchemyError as error:
            said = " ".join(str(error).split())[:200]
            raise LedgerError(f"{self.where} cannot be used ({said}): nothing was written") from None


def _let_go(engine: sql.Engine, process: int) -> None:
    """Close the connection, unless it is another process's."""
    if os.getpid() == process:
        engine.dispose()


def _hidden(url: object) -> str:
    """A URL for a message: without what may be a password."""
    text = str(url)
    scheme, found, rest = text.partition("://")
    return f"{scheme}://...@{rest.rpartition('@')[2]}" if found and "@" in rest else text


def _check_file(file: Path) -> None:
    """SQLite would take an empty file for a new database, and a new budget: it is a ledger that was lost."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        raise LedgerError(f"{file} does not exist: make it with dpfastmh ledger create, or correct the path") from None
    except OSError as error:
        raise LedgerError(f"{file} cannot be used ({(error.strerror or str(error)).lower()})") from None
    if not file.is_file() or size == 0:
        raise LedgerError(f"{file} is not a ledger: it is {'empty' if file.is_file() else 'no file'}; restore it")


def _sqlite(file: Path) -> sql.Engine:
    """An engine that never creates a file and whose transactions exclude each other from their first word on."""

    def connect() -> sqlite3.Connection:
        path = quote(os.fspath(file.absolute()))
        connection = sqlite3.connect(
            f"file:{path}?mode=rw", uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            for setting in ("synchronous=FULL", "trusted_schema=OFF", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = sql.create_engine("sqlite://", creator=connect, **ONE)

    @sql.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
