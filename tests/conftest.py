"""For every test: shape annotations are checked, warnings are errors, examples have no deadline."""

import os
import sys
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SOURCE = Path(__file__).parents[1] / "src"
# Configuration checks its own values and says what is wrong in a user's words; the checker must not speak first.
OWN_CHECKS = {"loopwise.config", "loopwise.train.config", "loopwise.sampling"}
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.glob("loopwise/**/*.py")}
sys.path.insert(0, str(Path(__file__).parent))
jaxtyping.install_import_hook(sorted(MODULES - OWN_CHECKS), "typechecker.check").__enter__()

# Machines are slow and shared: no example may fail for its time.
settings.register_profile("loopwise", deadline=None, max_examples=40)
settings.load_profile("loopwise")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and golden files; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("LOOPWISE_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip("the shared folder of corpora and golden files is absent (set LOOPWISE_SHARED)")
    return folder


@pytest.fixture
def no_shape_checks():
    """Compiled code must not trace the checker's wrappers."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
