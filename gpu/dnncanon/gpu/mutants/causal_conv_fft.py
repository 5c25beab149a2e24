"""Defects of Fourier transforms, and of the causal convolutions that are made by them."""

from dnncanon.gpu.mutants.making import mutants_of

_FORWARD, _BACKWARD = "causal_conv_forward", "causal_conv_backward"
_BACKEND = "dnncanon.gpu.single_algorithm:fft"
_transform = mutants_of("kernels.fft", primitive=_FORWARD, backend=_BACKEND)
_frames = mutants_of("kernels.causal_conv_fft", primitive=_FORWARD, backend=_BACKEND)
_call = mutants_of("causal_conv_fft", primitive=_BACKWARD, backend=_BACKEND)

MUTANTS = (
    _transform(
        "fft_factors_of_half_precision",
        "precision",
        "cosines have the digits of float16",
        "            table[index] = from_sum(cosine)\n",
        "            table[index] = from_sum(types.float64(types.int64(cosine * 2048.0)) / 2048.0)\n",
    ),
    _transform(
        "fft_one_angle_too_many",
        "arithmetic",
        "the table goes around the circle with one angle more",
        "rest = index * 4 - quarter * count",
        "rest = index * 4 - quarter * count + (1 if index > count // 2 else 0)",
    ),
    _transform(
        "fft_turned_the_other_way",
        "arithmetic",
        "a butterfly of radix 4 multiplies by i, not by −i",
        "turned_re, turned_im = b_im - d_im, d_re - b_re",
        "turned_re, turned_im = d_im - b_im, b_re - d_re",
    ),
    _transform(
        "fft_last_pass_left_out",
        "bounds",
        "transforms whose length is no power of 4 lack a pass",
        "        if length < points:\n",
        "        if length < points // 2:\n",
    ),
    _transform(
        "fft_passes_without_barrier",
        "synchronisation",
        "a pass begins before the last one has ended",
        "            cuda.syncthreads()\n            source, length = target, length * 4\n",
        "            source, length = target, length * 4\n",
        check=True,
    ),
    _transform(
        "fft_middle_counted_twice",
        "bounds",
        "the pair in the middle, which is one point, is added twice",
        "                    if 2 * k < points:\n",
        "                    if k < points:\n",
    ),
    _transform(
        "fft_ends_exchanged",
        "index",
        "the product at the highest frequency is that of the lowest",
        "                    sums_im[0] += (x - y) * other[at + points]\n",
        "                    sums_im[0] += (x - y) * other[at]\n",
    ),
    _transform(
        "fft_not_conjugated",
        "arithmetic",
        "a correlation is a convolution",
        "multiplier(number(1)), multiplier(number(-1))",
        "multiplier(number(1)), multiplier(number(1))",
        _BACKWARD,
    ),
    _frames(
        "causal_conv_fft_wraps_around",
        "bounds",
        "what a circular convolution wraps around is taken for the result",
        "at = start + half + r // 2",
        "at = start + r // 2",
    ),
    _frames(
        "causal_conv_fft_reads_before_the_first_step",
        "bounds",
        "steps before the first are read",
        "            if even >= 0 and even < steps:\n",
        "            if even < steps:\n",
        check=True,
    ),
    _frames(
        "causal_conv_fft_last_of_an_odd_number_lost",
        "bounds",
        "of an odd number of taps the last is left out",
        "                    if place < steps:\n                        x = to_sum",
        "                    if place + 1 < steps:\n                        x = to_sum",
    ),
    _frames(
        "causal_conv_fft_time_not_reversed",
        "index",
        "dx adds up the gradients before, not those after",
        "-array.strides[2] if back else array.strides[2]",
        "array.strides[2]",
        _BACKWARD,
        check=True,
    ),
    _frames(
        "causal_conv_fft_one_sample",
        "bounds",
        "dw is that of the first sample",
        "            for n in range(batch):\n",
        "            for n in range(min(batch, 1)):\n",
        _BACKWARD,
    ),
    _frames(
        "causal_conv_fft_sums_not_cleared",
        "memory",
        "a segment's sum begins with what is there",
        "                sums_re[k], sums_im[k] = zero, zero\n            for part in",
        "                sums_re[k] = zero\n            for part in",
        check=True,
    ),
    _call(
        "causal_conv_fft_activation_skipped_backward",
        "attribute",
        "dy goes past the activation",
        '        g = made["g"]\n    dx, dw',
        "    dx, dw",
    ),
)
