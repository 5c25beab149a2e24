"""Defects of what surrounds the kernels: attributes, validation, outputs, memory, launches."""

from dnncanon.gpu.mutants.making import BIAS, DATA, FILTER, FORWARD, FUSED, mutants_of
from dnncanon.spec.mutant import Mutant

_call = mutants_of("conv", primitive=FORWARD)
_seam = mutants_of("primitive", primitive=FORWARD)
_operand = mutants_of("runtime.interop", primitive=FORWARD)
_array = mutants_of("runtime.array", primitive=FORWARD)
_launch = mutants_of("runtime.launching", primitive=FORWARD)

_BIND = "        call = self.primitive.bind(*tensors, **attributes)\n        self._check_math"


def _bound_otherwise(name: str, doc: str, changes: str, primitive: str = FORWARD) -> Mutant:
    """The call is bound with these attributes changed: an expression that gives a dict."""
    before = f"        attributes = {{**attributes, **({changes})}}\n"
    return _seam(name, "validation", doc, _BIND, before + _BIND, primitive)


MUTANTS = (
    _call(
        "alpha1_ignored",
        "attribute",
        "the convolution is not scaled",
        "alpha1=problem.alpha1,",
        "alpha1=1.0,",
        FUSED,
    ),
    _call(
        "activation_ignored",
        "attribute",
        "relu is applied whatever the activation",
        'relu=problem.activation == "relu"',
        "relu=True",
        FUSED,
    ),
    _call(
        "residual_read_with_alpha2_0",
        "special",
        "0·z is added, so that NaN in a residual that does not count spreads",
        ' or not problem.alpha2 or "z" not in inputs',
        ' or "z" not in inputs',
        FUSED,
        ("float32", "float64", "float16"),
    ),
    _seam(
        "output_strides_ignored",
        "output",
        "outputs are written densely, whatever their strides",
        "Layouts(call, inputs, arrays)",
        "Layouts(call, inputs, "
        "{n: View(a.shape, dense_strides(a.shape)) for n, a in arrays.items()})",
    ),
    _seam(
        "input_cleared_after_use",
        "output",
        "the first input is overwritten once it has been used",
        "            self.implementation.run(self.launch)\n",
        "            self.implementation.run(self.launch)\n"
        "        first = next(iter(self.launch.inputs.values()))\n"
        "        if first.size:\n            describe(first, '').host[...] = 0\n",
        DATA,
    ),
    _seam(
        "empty_sums_skipped",
        "output",
        "where there is nothing to add up the output is not written",
        "if any(tensor.size for tensor in self.launch.call.outputs):",
        "if all(array.size for array in (*self.launch.inputs.values(), *self.launch.call.outputs)):",
        FILTER,
    ),
    _seam(
        "filters_kept",
        "output",
        "filters of an earlier call of the same shape are used again",
        "        inputs = {n: operands.read(tensor, n)",
        '        kept = globals().setdefault("_kept", {})\n'
        "        inputs = {n: operands.read("
        'kept.setdefault((tensor.shape, tensor.strides), tensor) if n == "w" else tensor, n)',
    ),
    _bound_otherwise(
        "groups_0_let_through",
        "groups below 1 count as 1",
        '{"groups": 1} if attributes.get("groups") == 0 else {}',
    ),
    _bound_otherwise(
        "unknown_mode_let_through",
        "an unknown mode counts as cross-correlation",
        '{} if attributes.get("mode") == "convolution" else {"mode": "cross_correlation"}',
    ),
    _bound_otherwise(
        "negative_padding_let_through",
        "negative padding counts as none",
        '{"padding": 0} if attributes.get("padding") == -1 else {}',
    ),
    _bound_otherwise(
        "stride_0_let_through",
        "stride 0 counts as 1",
        '{"stride": 1} if attributes.get("stride") == 0 else {}',
    ),
    _bound_otherwise(
        "nan_factor_let_through",
        "a factor that is NaN counts as 0",
        '{"alpha2": 0.0} if attributes.get("alpha2") != attributes.get("alpha2") else {}',
        FUSED,
    ),
    _bound_otherwise(
        "unknown_activation_let_through",
        "an unknown activation counts as none",
        '{} if attributes.get("activation", "relu") == "relu" else {"activation": "identity"}',
        FUSED,
    ),
    _bound_otherwise(
        "input_size_coerced",
        "an input size that is no integer is rounded, and another constraint gets the blame",
        '{"input_size": tuple(map(int, attributes["input_size"]))}'
        ' if isinstance(attributes.get("input_size"), tuple) else {}',
        DATA,
    ),
    _bound_otherwise(
        "filter_size_0_named_wrongly",
        "a filter size of 0 counts as 1, and the extents of dy get the blame",
        '{"filter_size": 1} if attributes.get("filter_size") == 0 else {}',
        FILTER,
    ),
    _seam(
        "constraint_not_named",
        "validation",
        "errors lose the constraint that was broken",
        _BIND,
        "        from dnncanon.spec import SpecError\n"
        "        try:\n            call = self.primitive.bind(*tensors, **attributes)\n"
        "        except SpecError as error:\n"
        "            raise type(error)(str(error)) from None\n        self._check_math",
        BIAS,
        backend="gpu",
    ),
    _operand(
        "out_ignored",
        "output",
        "results go to a new array, not into out",
        "target = self._empty(tensor, strides) if out is None else out",
        "target = self._empty(tensor, strides)",
    ),
    _operand(
        "gaps_cleared",
        "output",
        "the memory of an output is set to 0 first, gaps included",
        '            return Output(self._adopt(foreign, "out"), lambda: target)\n',
        '            array = self._adopt(foreign, "out")\n'
        "            host_view(array.lowest, array.dtype, (array.span,))[...] = 0\n"
        "            return Output(array, lambda: target)\n",
    ),
    _operand(
        "out_of_wrong_shape_let_through",
        "validation",
        "an out of another shape is written to",
        "if foreign.shape != tensor.shape:",
        "if len(foreign.shape) != len(tensor.shape):",
    ),
    _operand(
        "out_over_input_let_through",
        "validation",
        "an out that shares memory with an input is written to",
        '        self._refuse_overlap(foreign, "out", f"an out for {name}")\n',
        "",
    ),
    _operand(
        "out_over_the_end_of_an_input_let_through",
        "validation",
        "an out that begins elsewhere than an input is taken to share no memory with it",
        "            if overlap(written, foreign):\n",
        "            if overlap(written, foreign) and written.pointer == foreign.pointer:\n",
    ),
    _operand(
        "out_of_wrong_dtype_let_through",
        "validation",
        "an out of another dtype of as many bytes is written to",
        "if foreign.dtype != _numpy_dtype(tensor.dtype):",
        "if foreign.dtype.itemsize != _numpy_dtype(tensor.dtype).itemsize:",
    ),
    _operand(
        "out_of_overlapping_strides_let_through",
        "validation",
        "an out whose elements share addresses is written to",
        "        check_output_layout(name, foreign.shape, foreign.strides)\n",
        "",
    ),
    _array(
        "view_without_offset",
        "index",
        "views start at the first element of their buffer",
        "pointer=buffer.pointer + offset * buffer.dtype.itemsize",
        "pointer=buffer.pointer",
    ),
    _array(
        "last_element_not_handed_over",
        "memory",
        "the memory that a kernel is given ends before the last element",
        "self.lowest, self.span, storage_of(self.dtype)",
        "self.lowest, max(0, self.span - 1), storage_of(self.dtype)",
        check=True,
    ),
    _launch(
        "last_block_lost",
        "launch",
        "items that do not fill a block get no block",
        "max(1, min(-(-items // per_block), MAX_GRID))",
        "max(1, min(items // per_block, MAX_GRID))",
        equivalent="threads loop over all items, however many blocks there are",
    ),
    _launch(
        "one_block_only",
        "launch",
        "all work is given to one block",
        "MAX_GRID = 2**31 - 1\n",
        "MAX_GRID = 1\n",
        equivalent="blocks loop over all items, however many blocks there are",
    ),
)
