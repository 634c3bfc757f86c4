"""Which rewrites a program has. All of them, but to measure what each one is worth."""

from dataclasses import dataclass

from mpcvit.errors import UserError, nearest


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Every pass by its name, on unless switched off.

    Exact ones:
    fold_norms:        gains and biases of norms go into the linears that read them
    centre_writers:    what only norms read is written with a mean of zero
    fuse_linears:      two linears in a row are one
    group_heads:       a layer's heads share their products
    linear_order:      scaling heads alone take q (k' v)
    late_division:     rows are divided after their product with v
    class_token_alone: the last layer computes what the head reads

    Stand-ins, without which SPU's own functions are called:
    norms:       inverse roots
    divisions:   reciprocals
    activations: GeLU, exp and the like
    """

    fold_norms: bool = True
    centre_writers: bool = True
    fuse_linears: bool = True
    group_heads: bool = True
    linear_order: bool = True
    late_division: bool = True
    class_token_alone: bool = True
    norms: bool = True
    divisions: bool = True
    activations: bool = True

    @classmethod
    def without(cls, *names: str) -> "Passes":
        """
        >>> Passes.without("group-heads").group_heads
        False
        """
        known = [name.replace("_", "-") for name in vars(cls())]
        for name in names:
            if name not in known:
                raise UserError(f"there is no pass {name!r}; {nearest(name, known)}")
        return cls(**{name.replace("-", "_"): False for name in names})


ALL_PASSES = Passes()
