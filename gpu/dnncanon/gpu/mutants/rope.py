"""Defects of the rotary position embedding: of its kernel, its walk and its launch."""

from dnncanon.gpu.mutants.making import mutants_of

_rope = mutants_of("kernels.rope", primitive="rope_forward", backend="gpu")
_launch = mutants_of("rope", primitive="rope_forward", backend="gpu")

MUTANTS = (
    _rope(
        "rope_cosine_of_the_first_pair",
        "index",
        "the pairs of a thread have one angle",
        "held = rest_angles(angles, held)",
        "held = held",
        dtypes=("float16", "float32"),
    ),
    _rope(
        "rope_pairs_of_a_chunk_are_neighbours",
        "index",
        "of halves, too, neighbours in a chunk are a pair",
        "(lanes // 2, 2, 1) if interleaved else (lanes, 1, lanes)",
        "(lanes // 2, 2, 1) if interleaved else (lanes, min(2, lanes), 1)",
        dtypes=("float16", "float32"),
    ),
    _rope(
        "rope_chunks_overlap",
        "index",
        "interleaved, threads are an element apart where they should be a pair apart",
        "(1, chunks * lanes) if p.interleaved",
        "(1, lanes) if p.interleaved",
    ),
    _rope(
        "rope_last_heads_left_out",
        "launch",
        "heads that fill no group are not turned",
        "groups = (-(-heads // HEADS), positions",
        "groups = (max(1, heads // HEADS), positions",
    ),
    _rope(
        "rope_heads_beyond_the_last",
        "bounds",
        "a group has all its heads, whether they are there or not",
        "min(head_count, (group + 1) * heads)",
        "max(head_count, (group + 1) * heads) if group == 0 else (group + 1) * heads",
    ),
    _rope(
        "rope_chunks_that_do_not_fit",
        "bounds",
        "a number of pairs that does not divide into chunks is cut",
        "fits = 2 * p.pairs % (chunks * lanes) == 0 and p.begin",
        "fits = p.pairs >= lanes and p.begin",
    ),
    _rope(
        "rope_begin_ignored",
        "attribute",
        "the first slots are turned",
        "lanes, (p.begin, distance, pace), adjacent)",
        "lanes, (0, distance, pace), adjacent)",
    ),
    _rope(
        "rope_chunks_of_any_strides",
        "index",
        "elements of a head are taken for adjacent",
        "return aligned and array.strides[3] == 1 and all(",
        "return aligned and all(",
    ),
    _rope(
        "rope_second_of_the_turned_first",
        "arithmetic",
        "the second element is turned with the first one as it has become",
        "scale * (other * cosines[k] + one * sines[k])",
        "scale * (other * cosines[k] + values[k * step] * sines[k])",
    ),
    _rope(
        "rope_sign_ignored",
        "arithmetic",
        "the gradient is turned forward",
        "cosines[k], sines[k] = cos(theta), sign * sin(theta)",
        "cosines[k], sines[k] = cos(theta), sin(theta)",
        "rope_backward",
    ),
    _rope(
        "rope_angles_reduced_in_float32",
        "precision",
        "large angles are reduced by a multiple of 2π in float32",
        "                    theta = angle(first_angle(angles, held))\n",
        "                    theta = angle(first_angle(angles, held))\n"
        "                    theta -= number(6.2831853) * number(_int64(theta / number(6.2831853)))\n",
    ),
    _rope(
        "rope_others_not_scaled",
        "attribute",
        "what is not turned is not scaled",
        "    return scale * x\n",
        "    return x\n",
    ),
    _launch(
        "rope_others_not_written",
        "output",
        "what is not turned is not written",
        "    if 2 * p.pairs < p.shape[-1]:\n",
        "    if False:\n",
    ),
    _launch(
        "rope_others_begin_at_the_head",
        "index",
        "what is not turned is taken for the first slots",
        "pointer = array.pointer + slots.start * array.strides[-1] * array.dtype.itemsize",
        "pointer = array.pointer",
    ),
)
