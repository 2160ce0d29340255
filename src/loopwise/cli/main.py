"""The `loopwise` command: finds the verb, runs it, and turns results and errors into output and exit status.

Each verb is a module `loopwise.cli.<verb>` with `EXAMPLE: str`, `configure(parser)`, `run(args) -> dict` (the JSON
object) and `card(result) -> str` (what a person reads). Verbs are imported only when called, so that `--help` is quick.
"""

import argparse
import importlib
import json
import os
import signal
import sys
from typing import Any, NoReturn

from loopwise.config import InputError, nearest

VERBS: dict[str, str] = {
    "info": "shape, parameters, FLOPs by depth, KV bytes and speed-up bound of a checkpoint",
    "demo": "measure, allocate and generate with the embedded checkpoint; writes report.html",
    "prepare": "train or load a tokenizer and write token shards",
    "train": "pretrain a recipe with randomized depth; resumable",
    "measure": "trace every token to max depth: loss, convergence, token types",
    "allocate": "quality against mean depth for exit policies, costs included",
    "calibrate": "thresholds whose quality loss is bounded at a stated confidence",
    "study": "the whole study: every table and figure beside the published figures",
    "generate": "continue a prompt, coloured by exit depth",
    "score": "negative log-likelihood and bits per byte of a text",
    "serve": "OpenAI-compatible server and playground",
    "bench": "a benchmark with its baselines in one run",
    "import": "bring a foreign checkpoint in",
    "export": "write a checkpoint for another tool",
    "eval": "lm-eval tasks, batched, with per-token exit",
    "report": "draw figures and one self-contained page from records",
}


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line with a remedy."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: see '{self.prog} --help'")


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status (0 success, 2 bad input, 130 interrupted)."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(argv)
    except InputError as error:
        print("loopwise: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("loopwise: interrupted" + (f": {error}" if str(error) else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a folder without permission: the user's to mend, no traceback
        print(
            f"loopwise: {error.strerror or error}: {error.filename or 'disk'}: free space or choose another folder",
            file=sys.stderr,
        )
        return 2


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(importlib.import_module("importlib.metadata").version("loopwise"))
        return 0
    verb = argv[0]
    if verb not in VERBS:
        raise InputError(f"unknown command '{verb}': {nearest(verb, VERBS)}")
    module = importlib.import_module(f"loopwise.cli.{'import_' if verb == 'import' else verb}")
    args = _parse(verb, module, argv[1:])
    result: dict[str, Any] | None = module.run(args)
    if result is not None:
        print(json.dumps(result, allow_nan=False) if args.json else module.card(result))
    return 0


def _parse(verb: str, module: Any, argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog=f"loopwise {verb}",
        description=VERBS[verb][0].upper() + VERBS[verb][1:] + ".",
        epilog=f"example:\n  {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    if not getattr(module, "OVERRIDES", False):
        return parser.parse_args(argv)
    args, rest = parser.parse_known_args(argv)
    args.overrides = _overrides(rest)
    return args


def _overrides(rest: list[str]) -> dict[str, str]:
    """`--a.b value` or `--a.b=value` pairs, for verbs that change recipe fields."""
    found: dict[str, str] = {}
    items = iter(rest)
    for item in items:
        name, equals, value = item.partition("=")
        if not name.startswith("--") or "." not in name:
            raise InputError(f"unknown argument '{item}': see --help; recipe fields are given as --section.field value")
        value = value if equals else next(items, None)
        if value is None:
            raise InputError(f"argument '{name}' has no value: give one")
        found[name[2:]] = value
    return found


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()]
    return (
        "usage: loopwise COMMAND ...\n\nTrain, measure, allocate and serve depth-recurrent language models.\n\n"
        + "\n".join(lines)
        + "\n\n'loopwise COMMAND --help' says more. 'tiny' names the embedded checkpoint.\n"
        "example:\n  loopwise generate tiny --prompt 'The capital of' --policy 'kl<1e-3' --show-depth"
    )
