"""Vision Transformers, private under secure multi-party computation.

>>> import mpcvit
>>> mpcvit.__version__.count(".")
2
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcvit.classifier import Classifier, load

__all__ = ["Classifier", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import JAX only for those who use it: `mpcvit --help` answers at once."""
    if name in __all__:
        from mpcvit import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module 'mpcvit' has no attribute '{name}'")
