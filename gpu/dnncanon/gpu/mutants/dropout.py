"""Defects of dropout and random numbers, and of what elements of an elementwise kernel share."""

from dnncanon.gpu.mutants.making import mutants_of

_philox = mutants_of("kernels.philox", primitive="rng_bernoulli", backend="gpu")
_kernel = mutants_of("kernels.dropout", primitive="dropout_forward", backend="gpu")
_launch = mutants_of("dropout", primitive="dropout_forward", backend="gpu")
_shared = mutants_of("kernels.elementwise", primitive="rng_bernoulli", backend="gpu")

MUTANTS = (
    _philox(
        "dropout_nine_rounds",
        "arithmetic",
        "a round is left out",
        "for _ in range(ROUNDS):",
        "for _ in range(ROUNDS - 1):",
    ),
    _philox(
        "dropout_key_schedule_swapped",
        "arithmetic",
        "the two words of the key grow by each other's step",
        "_uint32(key_0 + _STEP_0), _uint32(key_1 + _STEP_1)",
        "_uint32(key_0 + _STEP_1), _uint32(key_1 + _STEP_0)",
    ),
    _philox(
        "dropout_key_before_the_round",
        "arithmetic",
        "the key grows before the first round as well",
        "key_0, key_1 = _uint32(seed), _uint32(_uint64(seed) >> _HALF)",
        "key_0, key_1 = _uint32(_uint32(seed) + _STEP_0), "
        "_uint32(_uint32(_uint64(seed) >> _HALF) + _STEP_1)",
    ),
    _philox(
        "dropout_high_halves_lost",
        "arithmetic",
        "the lower halves of the products go where the upper ones belong",
        "_uint32(_uint32(product_1 >> _HALF) ^ c1 ^ key_0)",
        "_uint32(_uint32(product_1) ^ c1 ^ key_0)",
    ),
    _philox(
        "dropout_seed_of_32_bits",
        "attribute",
        "the upper half of the seed is lost",
        "_uint32(_uint64(seed) >> _HALF)",
        "_uint32(0)",
    ),
    _philox(
        "dropout_block_number_of_32_bits",
        "bounds",
        "large offsets are cut",
        "_uint32(_uint64(number) >> _HALF)",
        "_uint32(0)",
    ),
    _philox(
        "dropout_subsequence_ignored",
        "attribute",
        "all subsequences are the first one",
        "return block(seed, subsequence, offset + number)\n\n\n@device_function\ndef _block_behind_two(",
        "return block(seed, 0, offset + number)\n\n\n@device_function\ndef _block_behind_two(",
    ),
    _philox(
        "dropout_word_order",
        "index",
        "the second and the third word of a block change places",
        "(w2, w3) if number & 2 else (w0, w1)",
        "(w1, w3) if number & 2 else (w0, w2)",
    ),
    _philox(
        "dropout_words_have_a_sign",
        "arithmetic",
        "words of 2^31 and more are negative",
        "return types.int64(odd if number & 1 else even)",
        "return types.int64(types.int32(odd if number & 1 else even))",
    ),
    _shared(
        "dropout_rest_shares_the_first_block",
        "bounds",
        "the elements behind the last chunk take the block of its first element",
        'if at < size:\n        {call.share("at")}',
        'if at < size:\n        {call.share("chunks")}',
    ),
    _shared(
        "dropout_chunk_shares_one_block",
        "index",
        "chunks of more than four elements take all words from one block",
        "if not self.shared or count <= 1 << self.shared.bits:",
        "if True:",
        dtypes=("bool", "uint8"),
    ),
    _shared(
        "dropout_strided_elements_share_the_wrong_block",
        "index",
        "the block is chosen by the place in memory",
        "{call.share(index)}",
        '{call.share("position")}',
    ),
    _kernel(
        "dropout_keeps_what_is_above",
        "bounds",
        "kept is what lies above p, not what equals it",
        "        return x * scale if word(block, index) >= threshold else zero",
        "        return x * scale if word(block, index) > threshold else zero",
        "dropout_backward",
    ),
    _kernel(
        "dropout_scale_forgotten",
        "arithmetic",
        "what is kept is not divided by 1 − p",
        "        return x * scale if word(block, index) >= threshold else zero",
        "        return x if word(block, index) >= threshold else zero",
        "dropout_backward",
    ),
    _kernel(
        "dropout_multiplies_by_the_mask",
        "special",
        "what is dropped is multiplied by 0, so that NaN and Inf give NaN",
        "(x * scale if keep else zero), keep",
        "x * (scale if keep else zero), keep",
    ),
    _kernel(
        "dropout_mask_of_what_is_dropped",
        "output",
        "the mask says what is dropped",
        "(x * scale if keep else zero), keep",
        "(x * scale if keep else zero), not keep",
    ),
    _kernel(
        "dropout_threshold_is_a_one",
        "bounds",
        "a word that equals the threshold makes a one",
        "word(block, index) < threshold)",
        "word(block, index) <= threshold)",
        "rng_bernoulli",
    ),
    _kernel(
        "dropout_fraction_of_all_bits",
        "precision",
        "a fraction has the 32 bits of its word, and is rounded, up to 1 even",
        "kind, shift = ELEMENTS[dtype].sum, 32 - digits\n    unit = kind(2.0**-digits)",
        "kind, shift = ELEMENTS[dtype].sum, 0\n    unit = kind(2.0**-32)",
        "rng_uniform",
        ("float32", "float16"),
    ),
    _kernel(
        "dropout_pair_shares_the_cosine",
        "index",
        "both elements of a pair have the cosine",
        "math.sin(theta) if index & 1 else math.cos(theta)",
        "math.cos(theta)",
        "rng_normal",
    ),
    _launch(
        "dropout_scale_of_the_dropped",
        "attribute",
        "what is kept is divided by p",
        '_each(run, function, (run.inputs["x"],), (p.scale, p.threshold))',
        '_each(run, function, (run.inputs["x"],), (1.0 / (p.probability or 1.0), p.threshold))',
    ),
    _launch(
        "dropout_half_of_the_blocks",
        "index",
        "numbers of two words take them from blocks of four elements",
        "Shared(2 if words == 1 else 1, BLOCKS[len(parameters)])",
        "Shared(2, BLOCKS[len(parameters)])",
        "rng_normal",
        ("float64",),
    ),
)
