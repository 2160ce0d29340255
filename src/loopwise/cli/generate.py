"""`loopwise generate`: continue a prompt with the reference decoder."""

import argparse
import sys
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.generate import Decoder, Token, generate
from loopwise.model.kv_layout import LAYOUTS
from loopwise.sampling import SamplingParams

EXAMPLE = "loopwise generate tiny --prompt 'The capital of' --policy 'rel_change<0.05' --show-depth"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")
    parser.add_argument("--prompt", required=True, help="text to continue")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--policy", help="exit policy, e.g. 'kl<1e-3,min=2,max=8', 'depth=4' (default: training mean)")
    how.add_argument("--tier", help="a tier of the checkpoint's tiers.json")
    parser.add_argument(
        "--prefill", help="policy for the prompt: depth=N (default: the training mean) or a signal of the state"
    )
    parser.add_argument("--layout", default="depth_indexed", help="KV layout: " + ", ".join(LAYOUTS))
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens to make (default 64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the likeliest")
    parser.add_argument("--seed", type=int, default=0, help="sampling seed (default 0)")
    parser.add_argument("--stop", action="append", default=[], help="stop string (repeatable)")
    parser.add_argument("--show-depth", action="store_true", help="print each token's exit depth")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Generate; prints tokens as they come when a person watches."""
    checkpoint = open_checkpoint(args.checkpoint)
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    tokenizer.check_vocab(checkpoint.config.vocab_size)
    policy = choose_policy(checkpoint, args.policy, args.tier)
    params = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
    )
    prompt = tokenizer.encode(args.prompt)
    _warn_beyond(checkpoint.config.context, len(prompt) + params.max_tokens, args.quiet)
    model = checkpoint.model()
    prefill = Policy.parse(args.prefill) if args.prefill else _prompt_policy(checkpoint, policy)
    decoder = Decoder(
        model,
        policy,
        length=len(prompt) + params.max_tokens,
        layout=args.layout,
        prefill=prefill,
        probe=checkpoint.probe(),
    )
    watch = _watcher(args, tokenizer, policy.bind(model.config.max_depth).max_depth or 1)
    with torch.inference_mode():
        made = generate(decoder, prompt, params, eos=tokenizer.eos_id, decode=tokenizer.decode, on_token=watch)
    depths = [t.depth for t in made.tokens]
    return {
        "text": made.text,
        "tokens": [t.id for t in made.tokens],
        "depths": depths,
        "mean_depth": sum(depths) / len(depths),
        "readouts": sum(t.readouts for t in made.tokens),
        "finish": made.finish,
        "policy": str(policy),
        "layout": args.layout,
        "prompt_tokens": len(prompt),
        "pieces": [tokenizer.token_text(t.id) for t in made.tokens],
        "show_depth": args.show_depth,
        "prompt": args.prompt,
    }


def choose_policy(checkpoint: Checkpoint, policy: str | None, tier: str | None) -> Policy:
    """The policy asked for, the tier's, or uniform depth at the training mean."""
    if policy:
        return Policy.parse(policy)
    if not tier:
        depth = max(1, min(checkpoint.config.max_depth, round(checkpoint.config.mean_depth)))
        return Policy.parse(f"depth={depth}")
    return checkpoint.tier(tier).policy


def _warn_beyond(context: int, length: int, quiet: bool) -> None:
    """The decoder goes on past the context of the checkpoint, but nothing was trained there."""
    if length > context and not quiet:
        print(
            f"warning: prompt and --max-tokens make {length:,} tokens, the checkpoint's context is {context:,}: "
            "text past it is not what the model was trained for; give a smaller --max-tokens",
            file=sys.stderr,
        )


def _prompt_policy(checkpoint: Checkpoint, policy: Policy) -> Policy:
    """Prompts run at the training mean, or at the policy's own limit if that is lower."""
    depth = max(1, min(checkpoint.config.max_depth, round(checkpoint.config.mean_depth)))
    return Policy.parse(f"depth={min(depth, policy.max_depth or depth)}")


def _watcher(args: argparse.Namespace, tokenizer: Tokenizer, deepest: int) -> Any:
    """A dot of progress per token on stderr, when someone is there to see it."""
    if args.quiet or args.json or not sys.stderr.isatty():
        return lambda token: None
    console = Console(stderr=True)

    def show(token: Token) -> None:
        console.print(Text("." if token.depth < deepest else "o"), end="")

    return show


SCALE = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")


def card(result: dict[str, Any]) -> str:
    """The text, coloured by exit depth on a terminal (dark: early, yellow: deep)."""
    console, text = Console(highlight=False), Text(result["prompt"])
    top = max(*result["depths"], 2)
    for piece, depth in zip(result["pieces"], result["depths"], strict=True):
        shade = SCALE[round((depth - 1) / (top - 1) * (len(SCALE) - 1))]
        text.append(piece, style=f"{'black' if depth > top / 2 else 'white'} on {shade}")
        if result["show_depth"]:
            text.append(f"[{depth}]", style="dim")
    with console.capture() as captured:
        console.print(text, soft_wrap=True)
    summary = (
        f"{len(result['tokens'])} tokens, mean depth {result['mean_depth']:.2f}, {result['readouts']} readouts, "
        f"policy {result['policy']}, {result['layout']} KV, ended by {result['finish']}"
    )
    return captured.get() + "\n" + summary
