"""Defects planted in the definitions of activations."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.activation"
_FORWARD, _BACKWARD = "activation_forward", "activation_backward"
_ANY = ("float32", "float64", "float16", "bfloat16")  # each function is drawn a few times in each


def _activation(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str = _FORWARD,
    dtypes: tuple[str, ...] = _ANY,
) -> Mutant:
    return Mutant(
        f"reference.activation_{name}", kind, doc, _MODULE, old, new, "reference", primitive, dtypes
    )


MUTANTS = (
    _activation(
        "nan_always_spreads",
        "attribute",
        "propagate_nan is ignored",
        "    if not p.propagate_nan:\n",
        "    if False:\n",
    ),
    _activation(
        "nan_never_spreads",
        "special",
        "NaN is taken for 0 in every function",
        "    if not p.propagate_nan:\n",
        "    if True:\n",
    ),
    _activation(
        "from_output_ignored",
        "attribute",
        "the output is taken for the input",
        "table = BACKWARD_FROM_OUTPUT if p.from_output else BACKWARD",
        "table = BACKWARD",
        _BACKWARD,
    ),
    _activation(
        "sigmoid_overflows",
        "special",
        "1/(1 + e^−x) as it stands, which is 0 where e^−x is infinite",
        "    return np.where(x >= 0.0, 1.0, e) / (1.0 + e)",
        "    return np.where(np.abs(x) < 80.0, 1.0 / (1.0 + np.exp(-x)), 1.0 * (x > 0.0))",
        dtypes=("float64",),
    ),
    _activation(
        "gelu_cancels",
        "precision",
        "Φ(x) by 1 + erf, which loses the left tail",
        "    gate = 0.5 * erfc(-ROOT_HALF * _cut(x, BEYOND_NORMAL))",
        "    gate = 0.5 * (2.0 - erfc(ROOT_HALF * x))",
        dtypes=("float64",),
    ),
    _activation(
        "gelu_multiplies_infinity_by_zero",
        "special",
        "gelu(−Inf) is −Inf·0",
        "gate = 0.5 * erfc(-ROOT_HALF * _cut(x, BEYOND_NORMAL))\n"
        "    return np.maximum(x, -BEYOND_NORMAL) * gate",
        "gate = 0.5 * erfc(-ROOT_HALF * _cut(x, BEYOND_NORMAL))\n    return x * gate",
    ),
    _activation(
        "softplus_cuts_off",
        "precision",
        "softplus is x from x = 20 on, as if float64 were float32",
        "    return np.maximum(x, 0.0) + np.log1p(",
        "    return np.where(x > 20.0, x, np.maximum(x, 0.0)) + (x <= 20.0) * np.log1p(",
        dtypes=("float64",),
    ),
    _activation(
        "softplus_beta_not_divided",
        "arithmetic",
        "ln(1 + e^βx) is not divided by β",
        "np.log1p(np.exp(-np.abs(bx))) / beta",
        "np.log1p(np.exp(-np.abs(bx)))",
    ),
    _activation(
        "elu_alpha_ignored",
        "attribute",
        "elu has the limit −1",
        "lambda p, x: elu(x, p.alpha)",
        "lambda p, x: elu(x, 1.0)",
    ),
    _activation(
        "elu_gradient_at_the_kink",
        "bounds",
        "elu's slope at 0 is the right one",
        "    return np.where(x > 0.0, dy, dy * (alpha",
        "    return np.where(x >= 0.0, dy, dy * (alpha",
        _BACKWARD,
    ),
    _activation(
        "relu_gradient_at_the_kink",
        "bounds",
        "relu's slope at 0 is 1",
        '"relu": lambda p, dy, x: np.where(x > 0.0, dy, 0.0)',
        '"relu": lambda p, dy, x: np.where(x >= 0.0, dy, 0.0)',
        _BACKWARD,
    ),
    _activation(
        "slope_zero_multiplies",
        "special",
        "a slope of 0 is multiplied by dy, which may be infinite",
        '"relu": lambda p, dy, x: np.where(x > 0.0, dy, 0.0)',
        '"relu": lambda p, dy, x: dy * (x > 0.0)',
        _BACKWARD,
    ),
    _activation(
        "ceiling_is_no_end",
        "bounds",
        "clipped_relu has a slope above its ceiling",
        "    return np.where((x > low) & (x < high), dy, 0.0)",
        "    return np.where(x > low, dy, 0.0)",
        _BACKWARD,
    ),
    _activation(
        "gelu_tanh_without_its_inner_slope",
        "arithmetic",
        "u′ of gelu_tanh lacks its factor 3",
        "(1.0 + 3.0 * GELU_TANH_CUBIC * np.square(x))",
        "(1.0 + GELU_TANH_CUBIC * np.square(x))",
        _BACKWARD,
    ),
    _activation(
        "swish_gradient_is_that_of_its_gate",
        "arithmetic",
        "the second term of swish's slope lacks β·x",
        "(1.0 + bx * sigmoid(-bx))",
        "(1.0 + sigmoid(-bx))",
        _BACKWARD,
    ),
    _activation(
        "tanh_gradient_of_one",
        "arithmetic",
        "1 − y instead of 1 − y²",
        "dy * (1.0 - np.square(y))",
        "dy * (1.0 - y)",
        _BACKWARD,
    ),
)
