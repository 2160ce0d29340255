"""`loopwise serve`: an OpenAI-compatible server and a playground over one checkpoint."""

import argparse
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from loopwise import hardware
from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError
from loopwise.model.kv_layout import LAYOUTS

EXAMPLE = "loopwise serve tiny --port 8000 --tier quick='rel_change<0.5,max=8'"
LIMITS = (  # field of ServeConfig, what it bounds
    ("max_choices", int, "choices that one request may ask for"),
    ("max_waiting", int, "choices that may queue; more is answered 503"),
    ("max_waiting_tokens", int, "prompt tokens that may queue; more is answered 503"),
    ("body_bytes", int, "bytes of a request body"),
    ("rate", int, "requests a minute for each key; more is answered 429 (0: no bound)"),
    ("per_key", int, "requests at a time for each key; more is answered 429 (0: no bound)"),
    ("request_s", float, "seconds that a request may take (0: no bound)"),
    ("stall_s", float, "seconds that a client may leave its answer unread"),
    ("header_s", float, "seconds for the headers of a request to arrive"),
    ("body_s", float, "seconds for its body to arrive"),
    ("drain_s", float, "seconds that requests may go on after SIGTERM"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port (default 8000; 0: any free one)")
    parser.add_argument("--name", help="model id (default: the checkpoint's name)")
    parser.add_argument("--api-key", action="append", default=[], metavar="KEY", help="ask for this key (repeatable); LOOPWISE_API_KEYS, separated by commas, is better: other users can see arguments")  # fmt: skip  # noqa: E501
    parser.add_argument("--tier", action="append", default=[], metavar="NAME=POLICY", help="add or replace a tier (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--default-tier", metavar="NAME", help="tier of requests that name none (default: full)")
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="jinja file instead of the checkpoint's template")  # fmt: skip  # noqa: E501
    parser.add_argument("--chat-stop", action="append", default=[], metavar="TEXT", help="text that ends a chat answer (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--metrics-compat", choices=("vllm",), help="expose the metrics that vLLM has under its names too")  # fmt: skip  # noqa: E501
    _configure_engine(parser)
    limits = parser.add_argument_group("limits")
    for name, kind, about in LIMITS:
        limits.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N", help=about)


def _configure_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-rows", type=int, metavar="N", help="rows of a launch (default 32)")
    engine.add_argument("--context", type=int, metavar="N", help="positions of a request (default: the model's)")
    engine.add_argument("--max-depth", type=int, metavar="N", help="most passes a request may ask for (default: the deepest tier's)")  # fmt: skip  # noqa: E501
    engine.add_argument("--prefill", metavar="POLICY", help="policy that computes prompts, for all tiers (default: uniform depth at the training mean)")  # fmt: skip  # noqa: E501
    engine.add_argument("--layout", default="depth_indexed", help="KV layout: " + ", ".join(LAYOUTS))
    engine.add_argument("--kv-tokens", type=int, metavar="N", help="positions of KV memory")
    engine.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt anew")
    engine.add_argument("--device", default="auto", help="auto, cpu or cuda")
    engine.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    engine.add_argument("--threads", type=int, metavar="N", help="CPU threads of the engine (default: torch's)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Serve until SIGTERM or Ctrl-C."""
    serving = load_server()
    settings = importlib.import_module("loopwise.serve.settings")
    checkpoint = open_checkpoint(args.checkpoint)
    if args.threads is not None:
        if args.threads < 1:
            raise InputError(f"threads is {args.threads}: use at least 1")
        torch.set_num_threads(args.threads)
    given = {name: getattr(args, name) for name, *_ in LIMITS if getattr(args, name) is not None}
    config = settings.ServeConfig(
        name=args.name or checkpoint.name, keys=_keys(args.api_key), default_tier=args.default_tier,
        chat_template=args.chat_template, chat_stop=tuple(args.chat_stop), metrics_compat=bool(args.metrics_compat),
        **given,
    )  # fmt: skip
    names = ("max_rows", "context", "max_depth", "prefill", "kv_tokens", "layout")
    engine = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    service = serving.build_service(
        checkpoint, config, tiers=_tiers(args.tier), engine=engine | {"prefix_cache": not args.no_prefix_cache},
        dtype=args.dtype, device=str(hardware.pick_device(args.device)),
    )  # fmt: skip
    serving.log_to(sys.stderr, level=logging.WARNING if args.quiet else logging.INFO)

    def ready(url: str) -> None:
        if not args.quiet:
            tiers = ", ".join(f"{name} ({tier.policy})" for name, tier in service.planner.menu.tiers.items())
            Console(stderr=True).print(
                f"serving {config.name} at {url} with tiers {tiers}", highlight=False, soft_wrap=True
            )

    return serving.serve(service, host=args.host, port=args.port, ready=ready)


def load_server() -> Any:
    """The server module; `InputError` where the extra is not installed."""
    try:
        return importlib.import_module("loopwise.serve.run")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("loopwise"):
            raise
        raise InputError(f"serving needs the package {error.name}: pip install 'loopwise[serve]'") from None


def _keys(given: list[str]) -> tuple[str, ...]:
    named = os.environ.get("LOOPWISE_API_KEYS", "")
    return (*given, *(key.strip() for key in named.split(",") if key.strip()))


def _tiers(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given:
        name, equals, policy = item.partition("=")
        if not equals or not name:
            raise InputError(f"--tier '{item}' is not NAME=POLICY: e.g. quick='rel_change<0.5'")
        found[name] = policy
    return found


def card(result: dict[str, Any]) -> str:
    """What was served."""
    ended = f"\n{result['fault']}" if result["fault"] else ""
    return (
        f"{result['requests']} requests, {result['cancelled']} of them cancelled; {result['prompt_tokens']} prompt "
        f"tokens ({result['cached_tokens']} from the cache), {result['output_tokens']} generated" + ended
    )
