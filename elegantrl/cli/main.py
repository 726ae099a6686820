"""``elegantrl``: one function per command; each command explains itself with ``--help``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module

from .. import __version__
from ..errors import ConfigError, ElegantRLError, did_you_mean
from .output import open_closed_streams, write_line

USAGE = """\
usage: elegantrl COMMAND ...

  train AGENT ENV    train an agent, e.g.  elegantrl train ppo CartPole-v1
  evolve ENV         train a population of agents that fit the environment and keep the best
  eval RUN           score the best policy of a run folder
  record RUN         record episodes of the best policy as a video
  export RUN         write the best policy as one ONNX or torch file for other programs
  serve RUN          answer observations with actions by HTTP
  plot RUN...        draw learning curves
  report FOLDER...   write a page about a run, several runs or a population: curves, tables, settings, video
  watch FOLDER...    show that page in a browser while the run is running
  bench AGENT ENV    measure layouts of processes and print the fastest on this machine
  submit -- COMMAND  run a command on a Ray cluster, e.g.  elegantrl submit --address URL -- train ppo CartPole-v1
  finance train ...  train trading agents on real prices, e.g.  elegantrl finance train ppo --seeds 5
  backtest FOLDER    back-test trading agents and write a report
  envs               list environments
  agents             list agents

`elegantrl COMMAND --help` explains a command. Exit codes: 0 done, 2 bad input, 3 the run failed,
4 no usable checkpoint, 5 storage failure, 130 and 143 stopped by a signal after a commit."""

TRAIN_USAGE = """\
usage: elegantrl train AGENT ENV [OPTIONS]
       elegantrl train --config FILE [--run-dir D] [--resume] [--allow-import]

  AGENT   one of `elegantrl agents`, or module:Class of your own
  ENV     a Gymnasium id, a tensor environment (`elegantrl envs`), envpool:ID, or module:attribute of your own

`elegantrl train AGENT ENV --help` lists all settings with the defaults for that pair."""


def usage_for(argv: list[str]) -> str | None:
    """The usage to print instead of a command, all of it without importing torch."""
    if not argv or argv[0] in ("-h", "--help"):
        return USAGE
    no_pair = len(argv) < 3 or argv[1].startswith("-") or argv[2].startswith("-")
    if argv[0] == "train" and (len(argv) == 1 or (no_pair and {"-h", "--help"} & {*argv})):
        return TRAIN_USAGE
    return None


COMMANDS = {
    "train": "train:main",
    "evolve": "evolve:main",
    "eval": "evaluate:main",
    "record": "record:main",
    "export": "export:main",
    "serve": "serve:main",
    "plot": "plot:main",
    "report": "watch:report_main",
    "watch": "watch:watch_main",
    "bench": "bench:main",
    "submit": "submit:main",
    "finance": "finance:main",
    "backtest": "finance:backtest_main",
    "envs": "lists:envs_main",
    "agents": "lists:agents_main",
}
"""Module of this folder and function of each command."""


def find_command(name: str) -> Callable[[list[str]], int]:
    """The function of a command. Only its module is imported: torch and matplotlib take seconds."""
    if name not in COMMANDS:
        raise ConfigError(f"there is no command {name!r}; {did_you_mean(name, COMMANDS)}")
    module, function = COMMANDS[name].split(":")
    command: Callable[[list[str]], int] = getattr(import_module(f".{module}", __package__), function)
    return command


def main(argv: list[str] | None = None) -> int:
    """Run one command; every expected error is one sentence on stderr and an exit code."""
    argv = sys.argv[1:] if argv is None else argv
    open_closed_streams()
    sys.path.append(os.getcwd())  # last, so that a file here never takes the place of an installed module
    handler = logging.StreamHandler()
    # Runs report skipped commits themselves.
    handler.addFilter(lambda record: "skipping commit" not in record.msg)
    logging.basicConfig(format="elegantrl: %(message)s", level=logging.WARNING, handlers=[handler])
    try:
        return run_command(argv)
    except ElegantRLError as error:
        print(f"elegantrl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before a run began, or the second Ctrl-C of one
        print("elegantrl: interrupted at once; a run folder keeps its last commit", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has ended, e.g. `elegantrl envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run_command(argv: list[str]) -> int:
    usage = usage_for(argv)
    if usage is not None:
        write_line(usage)
        return 0 if {"-h", "--help"} & {*argv} else 2
    if argv[0] == "--version":
        write_line(f"elegantrl {__version__}")
        return 0
    return find_command(argv[0])(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
