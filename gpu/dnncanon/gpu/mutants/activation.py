"""Defects of activations: of their device functions, and of how they are chosen."""

from dnncanon.gpu.mutants.making import mutants_of

_FORWARD, _BACKWARD = "activation_forward", "activation_backward"
_kernel = mutants_of("kernels.activation", primitive=_FORWARD, backend="gpu")
_launch = mutants_of("activation", primitive=_FORWARD, backend="gpu")
_choice = mutants_of("kernels.choosing", primitive=_FORWARD, backend="gpu")

MUTANTS = (
    _choice(
        "activation_choice_off_by_one",
        "index",
        "the function of the mode before is computed",
        'scope = {f"f{k}": function for k, function in enumerate(functions.values())}',
        'scope = {f"f{(k + 1) % len(functions)}": f for k, f in enumerate(functions.values())}',
    ),
    _launch(
        "activation_nan_always_spreads",
        "attribute",
        "propagate_nan is ignored",
        'mode = p.mode if p.propagate_nan else f"{p.mode}_of_numbers"',
        "mode = p.mode",
        dtypes=("float64",),
    ),
    _launch(
        "activation_from_output_ignored",
        "attribute",
        "the output is taken for the input",
        'table = "backward_from_output" if p.from_output else "backward"',
        'table = "backward"',
        _BACKWARD,
    ),
    _launch(
        "activation_operands_swapped",
        "index",
        "x is taken for dy",
        'run.inputs["dy"], run.inputs["x"]',
        'run.inputs["x"], run.inputs["dy"]',
        _BACKWARD,
    ),
    _launch(
        "activation_parameters_swapped",
        "attribute",
        "clipped_relu is cut off at the factor of elu",
        '"clipped_relu": p.ceiling',
        '"clipped_relu": p.alpha',
    ),
    _kernel(
        "activation_relu_loses_nan",
        "special",
        "relu of NaN is 0",
        "return zero if x < zero else x\n",
        "return x if x > zero else zero\n",
    ),
    _kernel(
        "activation_relu_gradient_at_the_kink",
        "bounds",
        "relu's slope at 0 is 1",
        "return dy if x > zero else zero\n",
        "return dy if x >= zero else zero\n",
        _BACKWARD,
    ),
    _kernel(
        "activation_slope_zero_multiplies",
        "special",
        "dy is multiplied by 0 or 1, and may be infinite",
        "return dy if x > zero else zero\n",
        "return dy * (one if x > zero else zero)\n",
        _BACKWARD,
    ),
    _kernel(
        "activation_sigmoid_overflows",
        "special",
        "1/(1 + e^−x), which is 0 where e^−x is infinite",
        "        return (e if x < zero else one) / (one + e)",
        "        return one / (one + math.exp(-x))",
    ),
    _kernel(
        "activation_gelu_cancels",
        "precision",
        "Φ(x) by 1 + erf, which loses the left tail",
        "return cut_below(x, beyond_normal) * (half * math.erfc(-root_half * x))",
        "return cut_below(x, beyond_normal) * (half * (one + math.erf(root_half * x)))",
    ),
    _kernel(
        "activation_gelu_multiplies_infinity_by_zero",
        "special",
        "gelu(−Inf) is −Inf·0",
        "return cut_below(x, beyond_normal) * (half * math",
        "return x * (half * math",
    ),
    _kernel(
        "activation_expm1_by_exp",
        "precision",
        "elu by e^x − 1, which loses small x",
        "return x if x > zero else alpha * math.expm1(x)",
        "return x if x > zero else alpha * (math.exp(x) - one)",
    ),
    _kernel(
        "activation_constant_of_one_digit",
        "precision",
        "a constant with few digits: √(2/π) as 0.8",
        "twice_root = number(2 * (2.0 / math.pi) ** 0.5)",
        "twice_root = number(1.6)",
    ),
    _kernel(
        "activation_tanh_gradient_cancels",
        "precision",
        "1 − tanh², which loses the tails",
        "        return dy * (four * e / ((one + e) * (one + e)))",
        "        return dy * (one - math.tanh(x) * math.tanh(x))",
        _BACKWARD,
    ),
    _kernel(
        "activation_mish_gradient_without_its_second_branch",
        "arithmetic",
        "q is e for positive x too",
        "n, d, q = one + two * e, one + two * e * (one + e), e * e",
        "n, d, q = one + two * e, one + two * e * (one + e), e",
        _BACKWARD,
    ),
)
