"""Defects of what surrounds the kernels: attributes, validation, outputs, memory, launches."""

from dnncanon.gpu.mutants.making import BIAS, DATA, FILTER, FORWARD, FUSED, mutants_of

_call = mutants_of("conv", primitive=FORWARD)
_operand = mutants_of("runtime.interop", primitive=FORWARD)
_array = mutants_of("runtime.array", primitive=FORWARD)
_launch = mutants_of("runtime.launching", primitive=FORWARD)

_FORWARD = "x, w, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode"
_FUSED = """\
        mode=mode,
        activation=activation,
        alpha1=alpha1,
        alpha2=alpha2,
    )
"""

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
        'z = inputs.get("z") if problem.alpha2 else None',
        'z = inputs.get("z")',
        FUSED,
        ("float32", "float64", "float16"),
    ),
    _call(
        "output_strides_ignored",
        "output",
        "outputs are written densely, whatever their strides",
        "plan = _plan(call, inputs, output.array)",
        "plan = _plan(call, inputs, View(result.shape, dense_strides(result.shape)))",
    ),
    _call(
        "input_cleared_after_use",
        "output",
        "the first input is overwritten once it has been used",
        "    return output.finish()\n",
        "    if first.size:\n        describe(tensors[0], names[0]).host[...] = 0\n"
        "    return output.finish()\n",
        DATA,
    ),
    _call(
        "empty_sums_skipped",
        "output",
        "where there is nothing to add up the output is not written",
        "    if result.size:\n",
        "    if result.size and first.size:\n",
        FILTER,
    ),
    _call(
        "filters_kept",
        "output",
        "filters of an earlier call of the same shape are used again",
        "        name: operands.read(tensor, name)\n",
        "        name: operands.read(\n"
        '            globals().setdefault("_kept", {}).setdefault((tensor.shape, tensor.strides), tensor)\n'
        '            if name == "w"\n'
        "            else tensor,\n"
        "            name,\n"
        "        )\n",
    ),
    _call(
        "groups_0_let_through",
        "validation",
        "groups below 1 count as 1",
        _FORWARD,
        _FORWARD.replace("groups=groups", "groups=groups if groups != 0 else 1"),
    ),
    _call(
        "unknown_mode_let_through",
        "validation",
        "an unknown mode counts as cross-correlation",
        _FORWARD,
        _FORWARD.replace(
            "mode=mode", 'mode=mode if mode == "convolution" else "cross_correlation"'
        ),
    ),
    _call(
        "negative_padding_let_through",
        "validation",
        "negative padding counts as none",
        _FORWARD,
        _FORWARD.replace("padding=padding", "padding=0 if padding == -1 else padding"),
    ),
    _call(
        "stride_0_let_through",
        "validation",
        "stride 0 counts as 1",
        _FORWARD,
        _FORWARD.replace("stride=stride", "stride=stride if stride != 0 else 1"),
    ),
    _call(
        "nan_factor_let_through",
        "validation",
        "a factor that is NaN counts as 0",
        _FUSED,
        _FUSED.replace("alpha2=alpha2", "alpha2=alpha2 if alpha2 == alpha2 else 0.0"),
        FUSED,
    ),
    _call(
        "unknown_activation_let_through",
        "validation",
        "an unknown activation counts as none",
        _FUSED,
        _FUSED.replace(
            "activation=activation", 'activation=activation if activation == "relu" else "identity"'
        ),
        FUSED,
    ),
    _call(
        "input_size_coerced",
        "validation",
        "an input size that is no integer is rounded, and another constraint gets the blame",
        "        input_size=input_size,\n    )\n",
        "        input_size=tuple(map(int, input_size))\n"
        "        if isinstance(input_size, tuple)\n        else input_size,\n    )\n",
        DATA,
    ),
    _call(
        "filter_size_0_named_wrongly",
        "validation",
        "a filter size of 0 counts as 1, and the extents of dy get the blame",
        "        filter_size=filter_size,\n    )\n",
        "        filter_size=filter_size if filter_size != 0 else 1,\n    )\n",
        FILTER,
    ),
    _call(
        "constraint_not_named",
        "validation",
        "errors lose the constraint that was broken",
        "    call = spec.conv_backward_bias.bind(dy)\n",
        "    try:\n        call = spec.conv_backward_bias.bind(dy)\n"
        "    except spec.SpecError as error:\n        raise type(error)(str(error)) from None\n",
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
        '        self._refuse_overlap(foreign, "out")\n',
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
