"""The commands of ``dpfastmh``, one file each.

A command's module has a line of ``HELP``, ``add_arguments(parser)`` and ``run(arguments) -> exit code``. Only the chosen
command's module is imported, and each imports heavy libraries inside ``run``: ``dpfastmh --help`` stays instant.
"""

COMMANDS = {
    "fit": "draw from the posterior of a private table",
    "plan": "forecast what a budget buys; reads no data",
    "predict": "predict new records from a posterior, with intervals",
    "report": "write the report of a posterior again",
    "demo": "sample a posterior of the shipped Adult census data",
}
