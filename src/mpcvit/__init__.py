"""Vision Transformers, private under secure multi-party computation.

>>> import mpcvit
>>> mpcvit.__version__.count(".")
2
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcvit.classifier import Classifier, load
    from mpcvit.lowering.program import SecureProgram
    from mpcvit.make_program import lower
    from mpcvit.secure.predict import predict
    from mpcvit.secure.run import RunResult, run
    from mpcvit.secure.serve import serve

__all__ = [
    "Classifier",
    "RunResult",
    "SecureProgram",
    "load",
    "lower",
    "predict",
    "run",
    "serve",
]
__version__ = "0.2.0"

_HOMES = {
    "Classifier": "mpcvit.classifier",
    "load": "mpcvit.classifier",
    "lower": "mpcvit.make_program",
    "SecureProgram": "mpcvit.lowering.program",
    "RunResult": "mpcvit.secure.run",
    "predict": "mpcvit.secure.predict",
    "run": "mpcvit.secure.run",
    "serve": "mpcvit.secure.serve",
}


def __getattr__(name: str) -> Any:
    """Import JAX only for those who use it: `mpcvit --help` answers at once."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mpcvit' has no attribute '{name}'")
