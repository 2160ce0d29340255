"""Names of recipes. A recipe is a function without arguments that returns a complete `Recipe`."""

from collections.abc import Callable

from loopwise.config import InputError, nearest
from loopwise.recipes.base_135m import base_135m, base_135m_stories
from loopwise.recipes.micro import micro
from loopwise.recipes.small import small
from loopwise.recipes.tiny import saturation, tiny, tiny_mean4
from loopwise.train.config import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "micro": micro,
    "tiny": tiny,
    "tiny-mean4": tiny_mean4,
    "saturation": saturation,
    "small": small,
    "base-135m": base_135m,
    "base-135m-stories": base_135m_stories,
}


def recipe(name: str) -> Recipe:
    """Look a recipe up; an unknown name raises `InputError` with the nearest valid one."""
    if name not in RECIPES:
        raise InputError(f"recipe '{name}' is unknown: {nearest(name, RECIPES)}")
    return RECIPES[name]()
