"""The commands of ``dpfastmh``, one file each, and a line about each for ``dpfastmh --help``.

A command's module has ``add_arguments(parser)`` and ``run(arguments) -> exit code``; its docstring is the description
and ``EXAMPLES`` the end of its help. Only the chosen command's module is imported, and each imports heavy libraries
inside ``run``: ``dpfastmh --help`` stays instant.
"""

COMMANDS = {
    "schema": "draft a schema from the names and types of a table's columns",
    "check": "what a schema makes of a table, for the custodian's own eyes",
    "ingest": "keep the rows of a large table in a form that fit reads again and again",
    "fit": "draw from the posterior of a private table",
    "ledger": "one budget for a table over years and people",
    "resume": "go on with a fit that was stopped, from its checkpoint",
    "plan": "forecast what a budget buys; reads no data",
    "predict": "predict new records from a posterior, with intervals",
    "report": "write the report of a posterior again",
    "audit": "try to catch every method giving away more than it charges for",
    "completion": "a script that completes commands and options in your shell",
    "demo": "a private fit of the shipped Adult census table",
}
