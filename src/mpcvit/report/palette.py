"""Colours of charts, and the ink that can be read on them."""

# Okabe and Ito's colours, which most kinds of sight tell apart.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#882255", "#666666"),
)


def colour_of(hue: int) -> str:
    """Return the colour of a hue; grey for what stands for several."""
    return "#999999" if hue < 0 else _COLOURS[hue % len(_COLOURS)]


def ink_on(colour: str) -> str:
    """Return the ink that can be read on a colour, whatever the page is like.

    >>> ink_on("#E69F00"), ink_on("#0072B2")
    ('#111111', 'white')
    """
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    weights = (0.21, 0.72, 0.07)
    luminance = sum(weight * part**2.2 for weight, part in zip(weights, parts, strict=True))
    return "white" if luminance < 0.18 else "#111111"
