"""Defects planted in the definition of the rotary position embedding."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.rope"


def _rope(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str = "rope_forward",
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    return Mutant(
        f"reference.rope_{name}", kind, doc, _MODULE, old, new, "reference", primitive, dtypes
    )


MUTANTS = (
    _rope(
        "turned_the_other_way",
        "arithmetic",
        "a rotation by −θ",
        "_turned(p, x, np.cos(angles), np.sin(angles))",
        "_turned(p, x, np.cos(angles), -np.sin(angles))",
    ),
    _rope(
        "gradient_turned_forward",
        "arithmetic",
        "the gradient is turned by θ, not back",
        "_turned(p, dy, np.cos(angles), -np.sin(angles))",
        "_turned(p, dy, np.cos(angles), np.sin(angles))",
        "rope_backward",
    ),
    _rope(
        "sine_and_cosine_swapped",
        "arithmetic",
        "an angle of 0 is a quarter turn",
        "_turned(p, x, np.cos(angles), np.sin(angles))",
        "_turned(p, x, np.sin(angles), np.cos(angles))",
    ),
    _rope(
        "second_of_the_turned_first",
        "arithmetic",
        "the second element is turned with the first one as it has become",
        "    pairs = [first * cosine - second * sine, second * cosine + first * sine]\n",
        "    first = first * cosine - second * sine\n"
        "    pairs = [first, second * cosine + first * sine]\n",
    ),
    _rope(
        "interleaved_ignored_in_the_result",
        "index",
        "pairs are taken interleaved and put down as halves",
        "    if p.interleaved:\n        turned",
        "    if False:\n        turned",
    ),
    _rope(
        "slots_ignored_in_the_result",
        "index",
        "what has been turned always goes to the last slots",
        '[others, turned] if p.rotated_slots == "last" else [turned, others]',
        "[others, turned]",
    ),
    _rope(
        "others_are_lost",
        "output",
        "slots that are not turned are 0",
        "    others = x[..., p.others]\n",
        "    others = 0.0 * x[..., p.others]\n",
    ),
    _rope(
        "others_are_not_scaled",
        "attribute",
        "only what is turned is scaled",
        "    others = x[..., p.others]\n",
        "    others = x[..., p.others] / (p.output_scale or 1.0)\n",
    ),
    _rope(
        "scale_ignored",
        "attribute",
        "there is no scale",
        "return y if p.output_scale == 1.0 else y * p.output_scale",
        "return y",
    ),
    _rope(
        "angles_of_float16",
        "precision",
        "angles are rounded to 11 bits",
        "_turned(p, x, np.cos(angles), np.sin(angles))",
        "_turned(p, x, np.cos(np.float64(np.float16(angles))), "
        "np.sin(np.float64(np.float16(angles))))",
    ),
    _rope(
        "angles_reduced_in_float32",
        "precision",
        "large angles are reduced by a multiple of 2π in float32",
        "_turned(p, x, np.cos(angles), np.sin(angles))",
        "_turned(p, x, *(f(angles - np.float32(2 * np.pi) * np.rint(angles / (2 * np.pi))) "
        "for f in (np.cos, np.sin)))",
    ),
)
