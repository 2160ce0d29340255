"""Make `micro_run`, which is also started as a program, importable in every pytest import mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
